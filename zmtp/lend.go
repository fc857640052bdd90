package zmtp

import (
	"context"
	"math"
	"time"
)

// Lending: a receiver that waits for the only connection that talks reads from it by itself. That saves the hand-over from the connection's
// goroutine, which costs more than the read. The goroutine lends when the receiver has been waiting for it several times in a row, sleeps
// meanwhile, and takes the reading back when no receiver comes, at the first thing that is not a whole small message, or when another
// connection has something to deliver.
const (
	lendAfter = 4                    // messages in a row, each of which found a receiver waiting
	lendCheck = 5 * time.Millisecond // a connection that nobody reads is taken back after one to two of these, and its PING answered then
)

// lent is the state of a lane's lending, under the inbox's lock.
type lent struct {
	reading     bool          // a receiver is reading
	used        bool          // one was since the goroutine looked
	interrupted bool          // the read deadline has passed, to end the receiver's read
	back        chan struct{} // capacity 1: the receiver gives the reading back
}

// lend is called by l's goroutine before it reads the first byte of a message. It returns when the goroutine is to read: at once, mostly.
func (q *inbox) lend(l *lane) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hot != nil || q.last != l || q.streak < lendAfter {
		return nil
	}
	q.hot, q.streak = l, 0
	l.used = true
	ticker := time.NewTicker(lendCheck)
	defer ticker.Stop()
	done := l.conn.done
	for q.hot == l || l.reading {
		q.mu.Unlock()
		select {
		case <-l.back:
		case <-ticker.C:
		case <-done:
			done = nil // a receiver may still be on its way out
		}
		q.mu.Lock()
		if !l.reading && (!l.used || done == nil) && q.hot == l {
			q.hot = nil
		}
		l.used = false
	}
	if done == nil {
		return l.conn.cause()
	}
	return nil
}

// interrupt ends the read of a receiver that has borrowed l.
func (l *lane) interrupt() {
	if l.reading && !l.interrupted {
		l.interrupted = true
		_ = l.conn.nc.SetReadDeadline(time.Unix(1, 0)) // fails if the connection is closed, which ends the read too
	}
}

// borrow reads once from q.hot, and queues what came. Called and returns with the lock held; gives it up meanwhile.
func (q *inbox) borrow(ctx context.Context) {
	l := q.hot
	l.reading, l.used = true, true
	q.mu.Unlock()
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			l.interrupt()
		})
	}
	ms, keep := l.conn.receive()
	stop()
	q.mu.Lock()
	l.reading = false
	if l.interrupted {
		l.interrupted, keep = false, false
		_ = l.conn.nc.SetReadDeadline(time.Time{}) // fails if the connection is closed, which its goroutine will see
	}
	q.enqueue(l, ms)
	clear(ms)
	if !keep {
		q.hot = nil
		select {
		case l.back <- struct{}{}:
		default: // a token is there; the goroutine looks at the state, not at their number
		}
	}
}

// receive reads once, and decodes the whole small messages that came. keep: nothing is left over, and the connection stands.
func (c *conn) receive() (ms []message, keep bool) {
	d := c.dec
	n, err := c.readSoon(d.buf)
	d.pos, d.end, d.full = 0, n, n == len(d.buf)
	ms, bad := d.ready(c.batch[:0], math.MaxInt, c.command)
	c.peer.messagesIn.Add(uint64(len(ms)))
	c.batch = ms
	if bad != nil {
		c.fail(bad)
		return ms, false
	}
	return ms, err == nil && d.pos == d.end && !d.full
}
