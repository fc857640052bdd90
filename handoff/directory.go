package handoff

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvferry/kvferry/backend"
	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// Peer names the prefill instance of a room.
type Peer struct {
	Bootstrap string // host:port of its registry
	DPRank    int    // data-parallel rank; -1: as the instance says (room modulo its DP size, or asked for)
}

// Route is the prefill ranks that serve a decode rank.
type Route struct {
	Targets []node.Target // not changed any more
	Until   time.Time     // up to when the route serves any room of the Peer it was asked for; zero: the one room
}

// routes is what a decode rank keeps of its directory's answers. The zero value works; it is safe for concurrent use.
type routes struct {
	mu    sync.Mutex
	known map[Peer]Route
}

func (r *routes) get(p Peer) (Route, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	route, ok := r.known[p]
	if ok && time.Now().After(route.Until) {
		delete(r.known, p)
		return Route{}, false
	}
	return route, ok
}

func (r *routes) keep(p Peer, route Route) {
	if route.Until.IsZero() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil || len(r.known) >= maxCache {
		r.known = map[Peer]Route{}
	}
	r.known[p] = route
}

// Directory finds prefill ranks. Find may take as long as ctx allows; it is never called on the path of other rooms. It is safe for
// concurrent use. Errors that wrap kvlayout.ErrIncompatible refuse the pair.
type Directory interface {
	Find(ctx context.Context, id room.ID, p Peer, own kvlayout.Geometry) (Route, error)
}

// causeOfRoute is why a room has no route.
func causeOfRoute(err error, bootstrap string) room.Cause {
	var cause room.Cause
	switch {
	case errors.As(err, &cause):
		return cause
	case errors.Is(err, kvlayout.ErrIncompatible), errors.Is(err, kvlayout.ErrGeometry):
		return room.NewCause(room.Incompatible, room.Decode, bootstrap, err.Error())
	}
	return room.NewCause(room.Unavailable, room.Decode, bootstrap, err.Error())
}

// endpointOf is a control socket in ZeroMQ's form.
func endpointOf(host string, port int) string {
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// hostPort is the control socket of a rank as its peers reach it.
func (r *rank) hostPort() (string, int) {
	host, text, err := net.SplitHostPort(strings.TrimPrefix(r.pull.Endpoint(), "tcp://"))
	if err != nil {
		return "", 0
	}
	port, _ := strconv.Atoi(text)
	return host, port
}

// introduce is what a decode rank tells prefill ranks about itself.
func introduce(r *rank, session string, g kvlayout.Geometry, mem *memory) (*backend.Introduction, error) {
	host, port := r.hostPort()
	in := &backend.Introduction{Host: host, Port: port, Session: session, EngineRank: g.TPRank, TPSize: g.TP, LayerIDs: g.LayerIDs}
	for i, k := range mem.kv {
		in.KV = append(in.KV, backend.Region{Base: k.Base(), Item: mem.KV[i].Item})
	}
	for i, a := range mem.aux {
		in.Aux = append(in.Aux, backend.Region{Base: a.Base(), Item: mem.Aux[i].Item})
	}
	for i, component := range mem.state {
		var rs []backend.Region
		for k, s := range component {
			rs = append(rs, backend.Region{Base: s.Base(), Item: mem.State[i][k].Item})
		}
		in.State = append(in.State, rs)
	}
	native, err := json.Marshal(g)
	if err != nil {
		return nil, fmt.Errorf("geometry: %w", err)
	}
	in.Native = native
	return in, nil
}
