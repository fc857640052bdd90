package drill

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// Faults of an engine.
const (
	faultError   = "write-error"
	faultPartial = "partial-post"
	faultLands   = "write-error-lands"
	faultStuck   = "stuck-write"
	faultVanish  = "write-vanishes"
)

// landsAfter is how long the bytes of a write that was reported failed stay under way.
const landsAfter = 300 * time.Millisecond

// faulty is an engine whose next write fails as it was told.
type faulty struct {
	transfer.Engine

	mu    sync.Mutex
	fault string
	loose chan struct{} // closed when stuck writes go on
}

func (e *faulty) inject(fault string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fault = fault
	if e.loose == nil {
		e.loose = make(chan struct{})
	}
}

// heal ends all faults; what is stuck goes on.
func (e *faulty) heal() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fault = ""
	if e.loose != nil {
		close(e.loose)
		e.loose = nil
	}
}

// Write implements transfer.Engine.
func (e *faulty) Write(peer string, batch []transfer.Fragment) (transfer.Handle, error) {
	e.mu.Lock()
	fault, loose := e.fault, e.loose
	e.fault = ""
	e.mu.Unlock()
	failed := fmt.Errorf("%w: %s", transfer.ErrPeerGone, fault)
	switch fault {
	case faultError:
		return nil, failed
	case faultPartial:
		h, err := e.Engine.Write(peer, batch[:len(batch)/2])
		if err != nil {
			return nil, err
		}
		return newLie(failed, h), nil
	case faultVanish:
		h := newLie(nil, nil)
		h.answered = true
		return h, nil
	case faultLands:
		h := newLie(failed, nil)
		late := slices.Clone(batch)
		go e.later(peer, late, time.After(landsAfter), nil, nil)
		return h, nil
	case faultStuck:
		h := &lie{done: make(chan struct{}), settled: make(chan struct{})}
		go e.later(peer, slices.Clone(batch), nil, loose, h)
		return h, nil
	}
	return e.Engine.Write(peer, batch)
}

// later does a write when it is due. It reports to h, if there is one.
func (e *faulty) later(peer string, batch []transfer.Fragment, due <-chan time.Time, loose <-chan struct{}, h *lie) {
	select {
	case <-due:
	case <-loose:
	}
	answered := true
	real, err := e.Engine.Write(peer, batch)
	if err == nil {
		<-real.Settled()
		err, answered = real.Err(), real.Answered()
	}
	if h != nil {
		h.err, h.answered = err, answered
		close(h.done)
		close(h.settled)
	}
}

// lie is a handle that says what its fault wants. Cancel does nothing: the write is out of reach.
type lie struct {
	err           error
	answered      bool
	done, settled chan struct{}
}

func (l *lie) Done() <-chan struct{}    { return l.done }
func (l *lie) Settled() <-chan struct{} { return l.settled }
func (l *lie) Cancel()                  {}
func (l *lie) Answered() bool           { return l.answered }

func (l *lie) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

// newLie fails with err, when h has settled. Without h bytes are still to come.
func newLie(err error, h transfer.Handle) *lie {
	l := &lie{err: err, done: make(chan struct{}), settled: make(chan struct{})}
	end := func() {
		close(l.done)
		close(l.settled)
	}
	if h == nil {
		end()
		return l
	}
	go func() {
		<-h.Settled()
		l.answered = h.Answered()
		end()
	}()
	return l
}
