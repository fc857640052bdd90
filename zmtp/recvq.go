package zmtp

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// evictAfter is how long a connection waits for memory before one that holds memory for an incomplete message is ended.
const evictAfter = 5 * time.Second

// fifo is a queue in a ring.
type fifo[T any] struct {
	ring []T
	head int
	n    int
}

func (f *fifo[T]) push(v ...T) {
	size := max(4, len(f.ring)) // a power of two
	for size < f.n+len(v) {
		size *= 2
	}
	if size > len(f.ring) {
		ring := make([]T, size)
		k := copy(ring, f.ring[f.head:])
		copy(ring[k:], f.ring[:f.head])
		f.ring, f.head = ring, 0
	}
	end := (f.head + f.n) & (size - 1)
	k := copy(f.ring[end:], v)
	copy(f.ring, v[k:])
	f.n += len(v)
}

// front is a part of the queue from its head on, at most n elements.
func (f *fifo[T]) front(n int) []T { return f.ring[f.head:min(f.head+n, f.head+f.n, len(f.ring))] }

// drop takes the first n elements away, which are in front.
func (f *fifo[T]) drop(n int) {
	clear(f.ring[f.head : f.head+n])
	f.head = (f.head + n) & (len(f.ring) - 1)
	f.n -= n
}

func (f *fifo[T]) pop() T {
	v := f.ring[f.head]
	f.drop(1)
	return v
}

func (f *fifo[T]) peek() T { return f.ring[f.head] }

// lane is the receive queue of one connection, part of an inbox and under its lock. It outlives the connection until it is empty.
type lane struct {
	conn    *conn
	msgs    fifo[message]
	bytes   int // of msgs
	over    int // bytes queued while the lane was full
	partial int // reserved for messages that are not queued yet
	since   time.Time
	waiting bool          // for memory
	listed  bool          // in inbox.active
	resume  chan struct{} // capacity 1: the lane is no longer full
	blocked bool          // somebody waits for resume
	lent
}

// inbox holds what a Pull has received. Connections take turns, message by message, as libzmq's fair queueing has it.
type inbox struct {
	limits Limits
	wake   chan struct{} // capacity 1; a token when there is something to receive
	done   chan struct{} // closed by close

	mu      sync.Mutex
	active  fifo[*lane] // lanes with messages
	lanes   map[*lane]struct{}
	queued  int           // messages
	used    int           // bytes, partial messages included
	space   chan struct{} // closed when used has fallen; nil: nobody waits
	closed  bool
	waiters int // receivers

	hot    *lane // lent to receivers; nil: none
	last   *lane // that found a receiver waiting
	streak int   // times in a row that it did
}

func newInbox(l Limits) *inbox {
	return &inbox{limits: l, wake: make(chan struct{}, 1), done: make(chan struct{}), lanes: map[*lane]struct{}{}}
}

func (q *inbox) open(c *conn) *lane {
	l := &lane{conn: c, resume: make(chan struct{}, 1), lent: lent{back: make(chan struct{}, 1)}}
	q.mu.Lock()
	q.lanes[l] = struct{}{}
	q.mu.Unlock()
	return l
}

// leave gives back what the connection's unfinished messages had reserved. Queued messages stay.
func (q *inbox) leave(l *lane) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.lanes, l)
	q.used -= l.partial
	l.partial = 0
	q.freed()
}

// reserve waits until n bytes fit into TotalBytes.
func (q *inbox) reserve(l *lane, n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.fit(l, n); err != nil {
		return err
	}
	if l.partial == 0 {
		l.since = time.Now()
	}
	q.used += n
	l.partial += n
	return nil
}

// put queues messages in order. It waits while the inbox is full before, and while the lane is full after.
func (q *inbox) put(l *lane, ms []message) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	// A batch may overshoot by what it has in hand already, which is at most one read buffer.
	if err := q.fit(l, 0); err != nil {
		return err
	}
	switch {
	case q.waiters == 0:
		q.streak = 0
	case q.last == l:
		q.streak++
	default:
		q.last, q.streak = l, 0
	}
	if q.hot != nil {
		q.hot.interrupt()
	}
	q.enqueue(l, ms)
	return q.pause(l)
}

// enqueue adds messages to the lane and tells a receiver.
func (q *inbox) enqueue(l *lane, ms []message) {
	if len(ms) == 0 {
		return
	}
	cost, reserved := 0, 0
	for i := range ms {
		cost += ms[i].cost
		reserved += ms[i].reserved
	}
	if l.msgs.n >= q.limits.QueueMessages || l.bytes >= q.limits.QueueBytes {
		l.over += cost
	}
	l.msgs.push(ms...)
	l.bytes += cost
	l.partial -= reserved
	q.used += cost - reserved
	q.queued += len(ms)
	if !l.listed {
		l.listed = true
		q.active.push(l)
	}
	if q.waiters > 0 {
		q.signal()
	}
}

func (q *inbox) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pause waits while l is full and has used up what it may read ahead.
func (q *inbox) pause(l *lane) error {
	for l.over >= q.limits.ReadAhead || l.bytes >= q.limits.QueueBytes+q.limits.ReadAhead {
		l.blocked = true
		err := q.wait(l, l.resume, nil)
		l.blocked = false
		if err != nil {
			return err
		}
	}
	return nil
}

// fit waits until n bytes fit into TotalBytes.
func (q *inbox) fit(l *lane, n int) error {
	if q.used+n <= q.limits.TotalBytes {
		return nil
	}
	ticker := time.NewTicker(evictAfter)
	defer ticker.Stop()
	l.waiting = true
	defer func() { l.waiting = false }()
	for q.used+n > q.limits.TotalBytes {
		if q.space == nil {
			q.space = make(chan struct{})
		}
		if err := q.wait(l, q.space, ticker.C); err != nil {
			return err
		}
	}
	return nil
}

// wait gives up the lock until c, the connection's end, or a tick, which evicts.
func (q *inbox) wait(l *lane, c <-chan struct{}, tick <-chan time.Time) error {
	peer := l.conn.peer
	peer.paused.Store(true)
	q.mu.Unlock()
	var err error
	var evict bool
	select {
	case <-c:
	case <-tick:
		evict = true
	case <-l.conn.done:
		err = l.conn.cause()
	}
	q.mu.Lock()
	peer.paused.Store(false)
	if evict {
		q.evict()
	}
	return err
}

// evict ends the connection whose incomplete message has held memory longest, if nothing the application could receive holds any: a peer
// that stalls within a large message must not stop the others. One that waits for the network goes before one that waits for us.
func (q *inbox) evict() {
	if q.queued > 0 {
		return
	}
	var victim *lane
	for l := range q.lanes {
		if l.partial == 0 {
			continue
		}
		if victim == nil || victim.waiting && !l.waiting || victim.waiting == l.waiting && l.since.Before(victim.since) {
			victim = l
		}
	}
	if victim != nil {
		victim.conn.fail(fmt.Errorf("%w: an incomplete message held %d bytes while others waited for memory", ErrEvicted, victim.partial))
	}
}

// get waits for messages, and takes at least one and at most len(into) of them.
func (q *inbox) get(ctx context.Context, into []Message) (n int, err error) {
	for {
		q.mu.Lock()
		if q.closed {
			q.mu.Unlock()
			return 0, ErrClosed
		}
		if q.active.n > 0 {
			for n < len(into) && q.active.n > 0 {
				n += q.next(into[n:])
			}
			if q.active.n > 0 && q.waiters > 0 {
				q.signal()
			}
			q.mu.Unlock()
			return n, nil
		}
		if q.hot != nil && !q.hot.reading && ctx.Err() == nil {
			q.borrow(ctx)
			q.mu.Unlock()
			continue
		}
		q.waiters++
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-q.done:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		q.mu.Lock()
		q.waiters--
		if err != nil && q.active.n > 0 && q.waiters > 0 {
			q.signal() // the token may have been ours
		}
		q.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
}

// next takes a message from the lane whose turn it is, or several if no other has any.
func (q *inbox) next(into []Message) (n int) {
	l := q.active.pop()
	if q.active.n > 0 {
		into = into[:1]
	}
	ms := l.msgs.front(len(into))
	cost := 0
	for i := range ms {
		into[i] = Message{Frames: ms[i].frames, Peer: l.conn.peer}
		cost += ms[i].cost
	}
	n = len(ms)
	l.msgs.drop(n)
	l.bytes -= cost
	q.used -= cost
	q.queued -= n
	if l.msgs.n > 0 {
		q.active.push(l)
	} else {
		l.listed = false
	}
	if l.over > 0 && l.msgs.n <= q.limits.QueueMessages/2 && l.bytes <= q.limits.QueueBytes/2 {
		l.over = 0
		if l.blocked {
			select {
			case l.resume <- struct{}{}:
			default:
			}
		}
	}
	q.freed()
	return n
}

// freed wakes those who wait for memory, at half, so that they don't come back for each message.
func (q *inbox) freed() {
	if q.space != nil && (q.used <= q.limits.TotalBytes/2 || q.queued == 0) {
		close(q.space)
		q.space = nil
	}
}

// close ends receiving, and returns the number of messages that nobody received.
func (q *inbox) close() (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0
	}
	q.closed = true
	close(q.done)
	dropped = q.queued
	q.queued, q.used, q.active = 0, 0, fifo[*lane]{}
	return dropped
}

func (q *inbox) length() (messages, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued, q.used
}
