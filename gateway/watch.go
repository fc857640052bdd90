package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Times of the watch on workers whose legs are quiet.
const (
	probeTime = 1500 * time.Millisecond // for a worker to answer /health with anything
	probeLife = time.Second             // of an answer, for all requests that wait for the worker
)

// watch looks after an attempt: when it has been quiet for a while, the workers that still owe an answer are asked whether they live. One that
// does not answer twice ends the attempt, since a stopped process or a cut link closes no connection.
type watch struct {
	g      *Gateway
	moved  atomic.Int64 // when something happened last, ns since 1970
	owes   [2]atomic.Pointer[candidate]
	silent atomic.Pointer[room.Cause]
}

func (w *watch) touch() { w.moved.Store(time.Now().UnixNano()) }

// answered says that a leg is over.
func (w *watch) answered(side room.Side) {
	w.touch()
	w.owes[slot(side)].Store(nil)
}

func slot(side room.Side) int {
	if side == room.Prefill {
		return 0
	}
	return 1
}

// run ends with ctx; it calls cancel when a worker is silent.
func (w *watch) run(ctx context.Context, cancel context.CancelFunc) {
	t := time.NewTicker(w.g.cfg.Quiet / 2)
	defer t.Stop()
	missed := [2]int{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if time.Since(time.Unix(0, w.moved.Load())) < w.g.cfg.Quiet {
			missed = [2]int{}
			continue
		}
		for i, side := range []room.Side{room.Prefill, room.Decode} {
			c := w.owes[i].Load()
			if c == nil || w.g.lives(ctx, c) {
				missed[i] = 0
				continue
			}
			if missed[i]++; missed[i] >= 2 && ctx.Err() == nil {
				c.broken.Store(time.Now().Add(restFor).UnixNano())
				cause := room.Causef(room.PeerSilent, side, c.URL, "it has not answered for %v", w.g.cfg.Quiet)
				w.silent.Store(&cause)
				cancel()
				return
			}
		}
	}
}

// lives asks a worker whether it answers at all; one question at a time and worker, whose answer serves all who ask within a second.
func (g *Gateway) lives(ctx context.Context, c *candidate) bool {
	c.probe.Lock()
	defer c.probe.Unlock()
	if time.Since(c.probed) < probeLife {
		return c.alive
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	c.alive = false
	if req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/health", nil); err == nil {
		if resp, err := g.client.Do(req); err == nil {
			_ = resp.Body.Close() // that it answers is enough
			c.alive = true
		}
	}
	c.probed = time.Now()
	return c.alive
}
