package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/registry"
	"github.com/kvferry/kvferry/room"
)

// Times of a Lookup.
const (
	lookupLife  = time.Second           // of what was learnt: a prefill that was restarted is found within it
	lookupPause = 50 * time.Millisecond // between two questions to an instance that is not ready
)

// Lookup is the Directory that asks bootstrap servers, kvferry's and SGLang's. The zero value works. It is safe for concurrent use.
type Lookup struct {
	Client registry.Client

	mu    sync.Mutex
	cache map[string]*learnt
}

// learnt is what an instance said about itself.
type learnt struct {
	sem  chan struct{} // one question at a time
	at   time.Time
	info *registry.Info // kvferry
	top  registry.Topology
	rank map[[4]int]registry.RankAddr
}

// Find implements Directory. It asks until the instance is ready or ctx ends. One that can't be reached for now, which a time-out or a broken
// connection means, is asked again; a refused connection and an answer that says no end it.
func (l *Lookup) Find(ctx context.Context, id room.ID, p Peer, own kvlayout.Geometry) (Route, error) {
	if !registry.ValidAddr(p.Bootstrap) {
		return Route{}, fmt.Errorf("%w: registry address %q, want host:port", registry.ErrInvalid, p.Bootstrap)
	}
	e, err := l.entry(ctx, p.Bootstrap)
	if err != nil {
		return Route{}, err
	}
	defer func() { <-e.sem }()
	for {
		r, err := l.find(ctx, e, id, p, own)
		if err == nil || !passing(err) || ctx.Err() != nil {
			return r, err
		}
		select {
		case <-time.After(lookupPause):
		case <-ctx.Done():
			return Route{}, err
		}
	}
}

// passing reports whether a question that failed with err is worth asking again.
func passing(err error) bool {
	var lookup *net.DNSError
	switch {
	case errors.Is(err, registry.ErrNotReady):
		return true
	case errors.As(err, &lookup):
		return false
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// maxCache bounds the addresses that are remembered.
const maxCache = 1024

func (l *Lookup) entry(ctx context.Context, addr string) (*learnt, error) {
	l.mu.Lock()
	e := l.cache[addr]
	if e == nil {
		e = &learnt{sem: make(chan struct{}, 1)}
		if l.cache == nil || len(l.cache) >= maxCache {
			l.cache = map[string]*learnt{}
		}
		l.cache[addr] = e
	}
	l.mu.Unlock()
	select {
	case e.sem <- struct{}{}:
		return e, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: registry %s: %w", registry.ErrUnavailable, addr, ctx.Err())
	}
}

func (l *Lookup) find(ctx context.Context, e *learnt, id room.ID, p Peer, own kvlayout.Geometry) (Route, error) {
	if time.Since(e.at) > lookupLife {
		if err := l.learn(ctx, e, p.Bootstrap); err != nil {
			return Route{}, err
		}
	}
	theirs, pairing := kvlayout.Topology{TP: e.top.TPSize, CP: e.top.CPSize, PP: e.top.PPSize}, kvlayout.Pairing{MLA: own.MLA, LayerSplit: e.top.LayerSplit, KVSharding: e.top.KVSharding}
	if e.info != nil {
		g := e.info.Geometry
		if err := kvlayout.Compatible(g, own); err != nil {
			return Route{}, err
		}
		theirs, pairing = kvlayout.Topology{TP: g.TP, CP: 1, PP: g.PP}, kvlayout.Pairing{MLA: own.MLA, Layers: own.Layers}
	} else if err := accept(e.top, own); err != nil {
		return Route{}, err
	}
	m, err := kvlayout.Ranks(theirs, kvlayout.Topology{TP: own.TP, CP: 1, PP: own.PP}, kvlayout.Rank{TP: own.TPRank, PP: own.PPRank}, pairing)
	if err != nil {
		return Route{}, err
	}
	dp, err := l.dpRank(ctx, e, id, p)
	if err != nil {
		return Route{}, err
	}
	var r Route
	if p.DPRank >= 0 || e.dpSize() == 1 {
		r.Until = e.at.Add(lookupLife)
	}
	for _, t := range m.Targets {
		a, err := l.address(ctx, e, p.Bootstrap, dp, t)
		if err != nil {
			return Route{}, err
		}
		r.Targets = append(r.Targets, node.Target{Endpoint: endpointOf(a.IP, a.Port), Rank: t.Unique, Dummy: t.Dummy, Required: t.DstInfos})
	}
	return r, nil
}

// learn asks a kvferry instance for all at once, a foreign one for its sizes.
func (l *Lookup) learn(ctx context.Context, e *learnt, addr string) error {
	info, err := l.Client.Info(ctx, addr)
	switch {
	case err == nil:
		e.info, e.at = &info, time.Now()
		return nil
	case !errors.Is(err, registry.ErrNotFound):
		return err
	}
	top, err := l.Client.Topology(ctx, addr)
	if err != nil {
		return err
	}
	e.info, e.top, e.rank, e.at = nil, top, map[[4]int]registry.RankAddr{}, time.Now()
	return nil
}

// accept asks of a foreign prefill what SGLang's decode asks, and whether the order of a page's elements is the one that SGLang's engines
// register: the wire says it only where an engine has another.
func accept(t registry.Topology, own kvlayout.Geometry) error {
	if own.Order != kvlayout.TokenMajor {
		return &kvlayout.IncompatibleError{What: "page order", Prefill: kvlayout.TokenMajor.String(), Decode: own.Order.String()}
	}
	layout := "nhd"
	return registry.CheckCompatible(t, registry.Own{PageSize: own.PageSize, DType: own.DType, Layout: &layout, TP: own.TP, PP: own.PP, MLA: own.MLA})
}

// dpSize is the instance's number of data-parallel ranks.
func (e *learnt) dpSize() int {
	if e.info != nil {
		return max(1, e.info.DPSize)
	}
	return e.top.DPSize
}

func (l *Lookup) dpRank(ctx context.Context, e *learnt, id room.ID, p Peer) (int, error) {
	size, follow := e.dpSize(), e.info != nil || e.top.FollowRoom
	switch {
	case p.DPRank >= size:
		return 0, fmt.Errorf("%w: DP rank %d, want below %d", registry.ErrInvalid, p.DPRank, size)
	case p.DPRank >= 0:
		return p.DPRank, nil
	case size == 1:
		return 0, nil
	case follow:
		return int(uint64(id) % uint64(size)), nil
	}
	rank, err := l.Client.DPRank(ctx, p.Bootstrap, id)
	if errors.Is(err, registry.ErrNotFound) {
		return 0, fmt.Errorf("%w: %w", registry.ErrNotReady, err)
	}
	return rank, err
}

func (l *Lookup) address(ctx context.Context, e *learnt, addr string, dp int, t kvlayout.Target) (registry.RankAddr, error) {
	if e.info != nil {
		if t.Unique >= len(e.info.Ranks) {
			return registry.RankAddr{}, fmt.Errorf("%w: rank %d of %d", registry.ErrNotFound, t.Unique, len(e.info.Ranks))
		}
		return e.info.Ranks[t.Unique], nil
	}
	k := [4]int{dp, t.CP, t.TP, t.PP}
	if a, ok := e.rank[k]; ok {
		return a, nil
	}
	a, err := l.Client.Rank(ctx, addr, dp, t.Rank)
	if err == nil {
		e.rank[k] = a
	}
	return a, err
}
