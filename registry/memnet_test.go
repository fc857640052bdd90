package registry

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/room"
)

// memnet is a network in memory, for tests with fake time: hosts are served by NewServer over pipes, a host that is nobody's refuses.
type memnet struct {
	mu    sync.Mutex
	hosts map[string]*memhost
	dials map[string]int
	http  *http.Client
}

type memhost struct {
	*http.Server
	accept chan net.Conn
	done   chan struct{}
	served chan struct{}
}

func newMemnet(t testing.TB) *memnet {
	n := &memnet{hosts: map[string]*memhost{}, dials: map[string]int{}}
	transport := &http.Transport{DialContext: n.dial}
	n.http = &http.Client{Transport: transport}
	t.Cleanup(func() {
		for addr := range n.hosts {
			n.down(addr)
		}
		transport.CloseIdleConnections()
	})
	return n
}

func (n *memnet) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[addr]++
	h := n.hosts[addr]
	n.mu.Unlock()
	if h == nil {
		return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
	}
	a, b := net.Pipe()
	select {
	case h.accept <- b:
		return a, nil
	case <-h.done:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

func (n *memnet) up(addr string, handler http.Handler) {
	h := &memhost{Server: NewServer(handler), accept: make(chan net.Conn), done: make(chan struct{}), served: make(chan struct{})}
	n.mu.Lock()
	n.hosts[addr] = h
	n.mu.Unlock()
	go func() {
		defer close(h.served)
		_ = h.Serve(h) // ends by Close
	}()
}

func (n *memnet) down(addr string) {
	n.mu.Lock()
	h := n.hosts[addr]
	delete(n.hosts, addr)
	n.mu.Unlock()
	_ = h.Server.Close() // closes the listener and all connections
	<-h.served
}

func (h *memhost) Accept() (net.Conn, error) {
	select {
	case c := <-h.accept:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *memhost) Close() error {
	close(h.done)
	return nil
}

func (h *memhost) Addr() net.Addr { return &net.TCPAddr{} }

func nativeInfo() Info {
	return Info{Instance: room.InstanceID{1}, Geometry: kvlayout.Geometry{Order: kvlayout.HeadMajor, DType: "f32", PageSize: 16, TP: 2, PP: 1, Layers: 2, End: 2, KVHeads: 2, HeadBytes: 256},
		Ranks: []RankAddr{{"10.0.0.1", 7000}, {"::1", 7001}}, DPSize: 1, Context: 2048}
}
