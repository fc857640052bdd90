package handoff

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/zmtp"
)

// push is a control connection to one endpoint.
type push struct {
	endpoint string
	sock     *zmtp.Push
	peer     atomic.Pointer[zmtp.Peer]
	last     time.Time // of what PeerHeard has reported
}

// letter is a message for one connection; without frames, the end of it.
type letter struct {
	to     *push
	frames [][]byte
}

// outbox holds what a node's steps want sent, in order. Whoever leaves the rank's lock sends it, one at a time, so that the order stays and
// the lock is not held meanwhile; what comes while somebody sends is sent by the same one. It is part of a rank and under its lock.
type outbox struct {
	out     []letter
	spare   []letter
	sending bool
}

// takeOut makes the caller the one who sends what it returns; nil: there is nothing, or somebody sends already.
func (o *outbox) takeOut() []letter {
	if o.sending || len(o.out) == 0 {
		return nil
	}
	batch := o.out
	o.out, o.spare, o.sending = o.spare[:0], nil, true
	return batch
}

// sendTurns bounds how long one caller sends for the others: then a goroutine goes on.
const sendTurns = 4

// sendOut sends a batch that takeOut gave, and what has come meanwhile.
func (r *rank) sendOut(batch []letter) {
	for turn := 0; batch != nil; turn++ {
		if turn == sendTurns {
			r.wg.Go(func() { r.sendOut(batch) })
			return
		}
		for rest := batch; len(rest) > 0; {
			n := 0 // letters in a row to the same
			for n < len(rest) && rest[n].to == rest[0].to && rest[n].frames != nil {
				n++
			}
			if n == 0 {
				p := rest[0].to
				r.wg.Go(func() { r.hangUp(p) })
				rest = rest[1:]
				continue
			}
			r.transmit(rest[:n])
			rest = rest[n:]
		}
		clear(batch)
		r.mu.Lock()
		r.spare, r.sending = batch, false
		batch = r.takeOut()
		r.mu.Unlock()
	}
}

// send leaves a message for the outbox. It runs under mu.
func (r *rank) send(endpoint string, frames [][]byte) {
	if p := r.pushes[endpoint]; p != nil && len(frames) > 0 {
		r.out = append(r.out, letter{p, frames})
	}
}

// transmit queues messages at their connection; nothing ever waits for a peer here. One that can't be queued is dropped.
func (r *rank) transmit(letters []letter) {
	p := letters[0].to
	var some [16][][]byte
	for len(letters) > 0 {
		list := some[:0]
		for _, l := range letters[:min(len(letters), len(some))] {
			list = append(list, l.frames)
		}
		n, err := p.sock.TrySendAll(list...)
		if err != nil {
			if dropped := r.dropped.Add(1); dropped&(dropped-1) == 0 {
				r.log.Warn("message dropped", "peer", p.endpoint, "error", err, "dropped_so_far", dropped)
			}
			n++
		}
		letters = letters[n:]
	}
}

func (r *rank) connect(endpoint string) {
	p := &push{endpoint: endpoint}
	z := r.zmtp()
	z.Events = func(e zmtp.ConnEvent) { r.connEvent(endpoint, p, e) }
	sock, err := zmtp.Dial(endpoint, z)
	if err != nil { // the endpoint itself can't be dialled
		r.wg.Go(func() { _ = r.step(node.PeerRefused{Endpoint: endpoint, Text: err.Error()}) })
		return
	}
	p.sock = sock
	r.pushes[endpoint] = p
}

// connEvent runs on the connection's goroutine. What it reports of a connection that was given up meanwhile is of no use.
func (r *rank) connEvent(endpoint string, p *push, e zmtp.ConnEvent) {
	var ev node.Event
	switch {
	case e.Kind == zmtp.Up:
		p.peer.Store(e.Peer)
		ev = node.PeerUp{Endpoint: endpoint, Instance: instanceOf(e.Peer)}
	case e.Kind == zmtp.Down:
		p.peer.Store(nil)
		ev = node.PeerDown{Endpoint: endpoint, Text: e.Cause.Error()}
	case e.Kind == zmtp.DialFailed && errors.Is(e.Cause, zmtp.ErrRefused):
		ev = node.PeerRefused{Endpoint: endpoint, Text: e.Cause.Error()}
	default:
		return
	}
	r.under(func() {
		if r.pushes[endpoint] == p {
			_ = r.locked(ev)
		}
	})
}

// hangUp flushes a connection that is given up, for a moment.
func (r *rank) hangUp(p *push) {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if n, _ := p.sock.Close(ctx); n > 0 {
		r.log.Debug("messages dropped with their connection", "count", n)
	}
}
