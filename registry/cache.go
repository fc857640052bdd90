package registry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvferry/kvferry/kvlayout"
)

// maxCached bounds the addresses that a Cache remembers; beyond it, an answer is given and not kept.
const maxCached = 1024

// Cache remembers what bootstrap servers said, by their exact address (upstream forgets by prefix, so that the death of h:300 takes h:3000
// with it), until it is told to forget. Concurrent questions about one address wait for each other; an answer that arrives after Forget is
// not kept. The zero value works.
type Cache struct {
	Client Client

	mu    sync.Mutex
	known map[string]*cached
}

type cached struct {
	turn   chan struct{} // holds one token: the right to ask and to touch what is below
	top    *Topology
	ranks  map[rowKey]RankAddr
	misses int // of Poll, which is alone in touching it
}

// enter waits for the right to ask addr; leave gives it back.
func (c *Cache) enter(ctx context.Context, addr string) (e *cached, leave func(), err error) {
	c.mu.Lock()
	e = c.known[addr]
	if e == nil {
		e = &cached{turn: make(chan struct{}, 1), ranks: map[rowKey]RankAddr{}}
		if c.known == nil {
			c.known = map[string]*cached{}
		}
		if len(c.known) < maxCached {
			c.known[addr] = e
		}
	}
	c.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
		return e, func() { <-e.turn }, nil
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("%w: registry %s: %w", ErrUnavailable, addr, ctx.Err())
	}
}

// Topology is Client.Topology, asked once.
func (c *Cache) Topology(ctx context.Context, addr string) (Topology, error) {
	e, leave, err := c.enter(ctx, addr)
	if err != nil {
		return Topology{}, err
	}
	defer leave()
	if e.top == nil {
		t, err := c.Client.Topology(ctx, addr)
		if err != nil {
			return Topology{}, err
		}
		e.top = &t
	}
	return *e.top, nil
}

// Rank is Client.Rank, asked once for each rank.
func (c *Cache) Rank(ctx context.Context, addr string, dp int, r kvlayout.Rank) (RankAddr, error) {
	e, leave, err := c.enter(ctx, addr)
	if err != nil {
		return RankAddr{}, err
	}
	defer leave()
	k := rowKey{dp, r.CP, r.TP, r.PP}
	a, ok := e.ranks[k]
	if !ok {
		if a, err = c.Client.Rank(ctx, addr, dp, r); err != nil {
			return RankAddr{}, err
		}
		e.ranks[k] = a
	}
	return a, nil
}

// Forget drops what is known of one address.
func (c *Cache) Forget(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, addr)
}

// Known are the addresses that are remembered, in no order.
func (c *Cache) Known() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]string, 0, len(c.known))
	for addr := range c.known {
		list = append(list, addr)
	}
	return list
}

// Numbers of the health poll: upstream's.
const (
	defaultPoll = 5 * time.Second
	pollMisses  = 2
	pollAtOnce  = 16 // questions
)

// Poll asks every remembered address for its health, each interval (0: 5 s), until ctx ends. An address that fails twice in a row is
// forgotten and then given to lost, which is called from Poll's goroutines, several at once. A silent address delays no other.
func (c *Cache) Poll(ctx context.Context, interval time.Duration, lost func(addr string, err error)) {
	if interval <= 0 {
		interval = defaultPoll
	}
	for sleep(ctx, interval) {
		var g sync.WaitGroup
		places := make(chan struct{}, pollAtOnce)
		for _, addr := range c.Known() {
			places <- struct{}{}
			g.Go(func() {
				defer func() { <-places }()
				c.poll(ctx, addr, lost)
			})
		}
		g.Wait()
	}
}

func (c *Cache) poll(ctx context.Context, addr string, lost func(string, error)) {
	err := c.Client.Health(ctx, addr)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	e := c.known[addr]
	gone := false
	switch {
	case e == nil:
	case err == nil:
		e.misses = 0
	default:
		e.misses++
		if gone = e.misses >= pollMisses; gone {
			delete(c.known, addr)
		}
	}
	c.mu.Unlock()
	if gone {
		lost(addr, err)
	}
}
