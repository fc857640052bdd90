package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Sizes of the send queue, in bytes. Chosen by the package's own benchmarks.
const (
	packMax   = 16 << 10 // messages up to here are copied, many to a chunk; larger ones are written from the caller's memory
	copyFrame = 4 << 10  // frames of a large message up to here are copied together with the headers
	chunkSize = 64 << 10 // a chunk of packed messages takes no more once it has reached this
	writeSize = 1 << 20  // one write takes no more chunks once it has reached this
	spareMax  = 16       // chunks kept for reuse; a full queue of small messages takes no more
)

// directAfter is the time since the last write after which a sender that finds the queue empty writes its message itself, at once and as far
// as the kernel takes it without waiting: that saves a hand-over between goroutines, which is a third of a round trip. Senders that come
// faster leave the writing to the writer, which then carries many messages in one call.
const directAfter = 5 * time.Microsecond

// chunk is a run of encoded messages: packed ones in one buffer, or one large message as a vector.
type chunk struct {
	buf  []byte   // packed
	ends []int    // packed: where each message ends in buf
	off  int      // packed: bytes of buf that are done with; always a message's end or 0
	vec  [][]byte // large: headers, copied frames and the caller's frames
	size int      // bytes left to write
	cost []int    // of each message left, as charged to the queue
}

// sendQueue holds the messages of a Push between Send and the kernel. Messages stay in it, and count, until they are wholly written, so
// that they survive the connection.
type sendQueue struct {
	limits Limits
	wake   chan struct{} // capacity 1; a token when the queue stops being empty

	mu       sync.Mutex
	chunks   []*chunk // not being written; chunks[head:] are valid
	head     int
	spare    []*chunk
	messages int // being written included
	bytes    int
	closed   bool
	room     chan struct{} // closed when there is room again; nil: nobody waits
	drained  chan struct{} // closed when the queue is closed and empty

	// One at a time writes to the connection: its writer, or a sender.
	conn      *conn    // that is up; nil: none
	raw       *rawConn // of conn; nil: senders don't write
	busy      bool     // somebody writes
	kick      bool     // the writer waits for busy to end
	idle      sync.Cond
	lastWrite time.Time
	skip      int   // bytes of the first message that conn has taken already
	direct    batch // of the sender that writes
	vec       net.Buffers
}

func newSendQueue(l Limits) *sendQueue {
	q := &sendQueue{limits: l, wake: make(chan struct{}, 1), drained: make(chan struct{})}
	q.idle.L = &q.mu
	return q
}

// attach makes c the connection that messages go to.
func (q *sendQueue) attach(c *conn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.conn, q.raw, q.skip = c, newRawConn(c.nc), 0
	q.signal()
}

// detach ends that. When it returns, nobody writes to the connection any more.
func (q *sendQueue) detach() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.busy {
		q.idle.Wait()
	}
	q.conn, q.raw, q.skip = nil, nil, 0
}

func (q *sendQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// check holds a message against the limits, and returns its cost and its size on the wire.
func (q *sendQueue) check(frames [][]byte) (cost, size int, err error) {
	l := &q.limits
	if len(frames) == 0 || len(frames) > l.MaxFrames {
		return 0, 0, fmt.Errorf("%w: %d frames, want 1 to %d", ErrTooLarge, len(frames), l.MaxFrames)
	}
	cost = messageOverhead + len(frames)*frameOverhead
	for i, f := range frames {
		if len(f) > l.MaxFrame {
			return 0, 0, fmt.Errorf("%w: frame %d of %d bytes, limit %d", ErrTooLarge, i, len(f), l.MaxFrame)
		}
		cost += len(f)
		size += frameHeaderLen(len(f)) + len(f)
	}
	if cost > l.MaxMessage {
		return 0, 0, fmt.Errorf("%w: message of %d bytes (with %d for each frame), limit %d", ErrTooLarge, cost, frameOverhead, l.MaxMessage)
	}
	return cost, size, nil
}

// put queues a message, or returns ErrQueueFull or ErrClosed; with ErrQueueFull and wait set, room is closed when trying again may help.
func (q *sendQueue) put(frames [][]byte, cost, size int, wait bool) (room <-chan struct{}, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	idle := q.head == len(q.chunks) && !q.busy
	if err := q.add(frames, cost, size); err != nil {
		if wait && q.room == nil && errors.Is(err, ErrQueueFull) {
			q.room = make(chan struct{})
		}
		return q.room, err
	}
	if idle {
		q.ship(size <= packMax)
	}
	return nil, nil
}

// putAll queues messages until one fails, and returns how many it has queued.
func (q *sendQueue) putAll(messages [][][]byte) (n int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	idle := q.head == len(q.chunks) && !q.busy
	small := true
	for _, frames := range messages {
		var cost, size int
		if cost, size, err = q.check(frames); err == nil {
			err = q.add(frames, cost, size)
		}
		if err != nil {
			break
		}
		small = small && size <= packMax
		n++
	}
	if idle && n > 0 {
		q.ship(small)
	}
	return n, err
}

// add appends a message to what is queued.
func (q *sendQueue) add(frames [][]byte, cost, size int) error {
	if q.closed {
		return ErrClosed
	}
	if q.messages >= q.limits.QueueMessages || q.bytes+cost > q.limits.QueueBytes {
		return ErrQueueFull
	}
	if size <= packMax {
		c := q.tail(size)
		c.buf = appendMessage(c.buf, frames)
		c.ends = append(c.ends, len(c.buf))
		c.size += size
		c.cost = append(c.cost, cost)
	} else {
		q.chunks = append(q.chunks, &chunk{vec: vector(frames), size: size, cost: []int{cost}})
	}
	q.messages++
	q.bytes += cost
	return nil
}

// ship has the queue written that was empty, by the caller if it may. Else whoever writes takes what has come next.
func (q *sendQueue) ship(small bool) {
	if q.raw != nil && small && time.Since(q.lastWrite) >= directAfter && q.conn.controlSent() {
		q.writeDirect()
	} else {
		q.signal()
	}
}

// writeDirect writes what is queued, as far as the kernel takes it at once. Called and returns with the lock held; gives it up meanwhile.
func (q *sendQueue) writeDirect() {
	c, raw := q.conn, q.raw
	q.vec = q.load(&q.direct, q.vec[:0])
	q.busy = true
	q.mu.Unlock()
	n, err := raw.write(q.vec[0])
	q.mu.Lock()
	clear(q.vec)
	messages := q.account(&q.direct, n, err)
	c.wrote(n, messages)
	if err != nil {
		c.fail(c.named(err))
	}
}

func appendMessage(b []byte, frames [][]byte) []byte {
	for i, f := range frames {
		b = appendFrameHeader(b, more(i, frames), len(f))
		b = append(b, f...)
	}
	return b
}

func more(i int, frames [][]byte) byte {
	if i < len(frames)-1 {
		return flagMore
	}
	return 0
}

// vector lays a large message out for writing: its large frames stay where they are.
func vector(frames [][]byte) [][]byte {
	copied, large := 0, 0
	for _, f := range frames {
		copied += frameHeaderLen(len(f))
		if len(f) <= copyFrame {
			copied += len(f)
		} else {
			large++
		}
	}
	buf := make([]byte, 0, copied) // never grows: slices of it stand in vec
	vec := make([][]byte, 0, 2*large+1)
	start := 0
	for i, f := range frames {
		buf = appendFrameHeader(buf, more(i, frames), len(f))
		if len(f) <= copyFrame {
			buf = append(buf, f...)
			continue
		}
		vec = append(vec, buf[start:len(buf):len(buf)], f)
		start = len(buf)
	}
	if start < len(buf) {
		vec = append(vec, buf[start:])
	}
	return vec
}

// tail returns the chunk that a packed message of that size goes to.
func (q *sendQueue) tail(size int) *chunk {
	if q.head < len(q.chunks) {
		if c := q.chunks[len(q.chunks)-1]; c.vec == nil && len(c.buf)+size <= chunkSize {
			return c
		}
	}
	var c *chunk
	if n := len(q.spare); n > 0 {
		c, q.spare = q.spare[n-1], q.spare[:n-1]
	} else {
		c = &chunk{}
	}
	q.chunks = append(q.chunks, c)
	return c
}

// batch is what one write carries. Reused by the writer.
type batch struct {
	chunks []*chunk
}

// begin makes the caller the one who writes, moves queued chunks to b if the connection is up, and appends their bytes to vec. cut: they begin
// within a message, so that nothing may go before them. Not ok: a sender is writing; wake gets a token when it is done.
func (q *sendQueue) begin(b *batch, vec net.Buffers) (_ net.Buffers, cut, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy {
		q.kick = true
		return vec, false, false
	}
	q.busy = true
	if q.conn != nil {
		vec = q.load(b, vec)
	}
	return vec, q.skip > 0, true
}

func (q *sendQueue) load(b *batch, vec net.Buffers) net.Buffers {
	b.chunks = b.chunks[:0]
	skip := q.skip
	for size := 0; q.head < len(q.chunks) && size < writeSize; q.head++ {
		c := q.chunks[q.head]
		q.chunks[q.head] = nil
		b.chunks = append(b.chunks, c)
		size += c.size
		if c.vec != nil {
			vec = append(vec, c.vec...)
		} else {
			vec = append(vec, c.buf[c.off+skip:]) // only a packed message is ever cut
		}
		skip = 0
	}
	if q.head == len(q.chunks) {
		q.chunks, q.head = q.chunks[:0], 0
	}
	return vec
}

// end accounts for the write of b, and lets others write.
func (q *sendQueue) end(b *batch, n int, failed error) (messages int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.account(b, n, failed)
}

// account accounts for a write of b of which the kernel took n bytes, and returns how many messages it took wholly. The others are put back
// to the front. After a failed write a partly written one starts again from its beginning: its first part died with the connection.
func (q *sendQueue) account(b *batch, n int, failed error) (messages int) {
	q.busy = false
	q.idle.Signal() // detach
	defer func() {
		if q.kick || q.conn != nil && q.head < len(q.chunks) { // what came meanwhile relied on whoever was writing
			q.kick = false
			q.signal()
		}
	}()
	if len(b.chunks) == 0 {
		return 0
	}
	q.lastWrite = time.Now()
	n += q.skip
	q.skip = 0
	var back []*chunk
	for _, c := range b.chunks {
		t := c.advance(min(n, c.size))
		n -= t.size
		messages += t.messages
		q.messages -= t.messages
		q.bytes -= t.cost
		switch {
		case len(c.cost) > 0:
			if len(back) == 0 && failed == nil {
				q.skip = n
			}
			back, n = append(back, c), 0
		case c.vec == nil && len(q.spare) < spareMax && cap(c.buf) <= 2*chunkSize:
			c.reset()
			q.spare = append(q.spare, c)
		}
	}
	clear(b.chunks)
	b.chunks = b.chunks[:0]
	if len(back) > 0 {
		q.chunks = append(back, q.chunks[q.head:]...)
		q.head = 0
	}
	q.freed()
	return messages
}

type taken struct{ messages, size, cost int }

// advance drops the messages that n bytes wholly cover.
func (c *chunk) advance(n int) (t taken) {
	if c.vec != nil {
		if n < c.size {
			return taken{}
		}
		t = taken{messages: 1, size: c.size, cost: c.cost[0]}
		c.vec, c.cost, c.size = [][]byte{}, nil, 0
		return t
	}
	for t.messages < len(c.ends) && c.ends[t.messages]-c.off <= n {
		t.cost += c.cost[t.messages]
		t.messages++
	}
	if t.messages > 0 {
		t.size = c.ends[t.messages-1] - c.off
		c.off += t.size
		c.size -= t.size
		c.ends, c.cost = c.ends[:copy(c.ends, c.ends[t.messages:])], c.cost[:copy(c.cost, c.cost[t.messages:])]
	}
	return t
}

func (c *chunk) reset() {
	c.buf, c.ends, c.cost, c.off, c.size = c.buf[:0], c.ends[:0], c.cost[:0], 0, 0
}

// freed wakes those who wait for room or for the end. Waiters are woken at half, so that they come back in batches.
func (q *sendQueue) freed() {
	if q.room != nil && q.messages <= q.limits.QueueMessages/2 && q.bytes <= q.limits.QueueBytes/2 {
		close(q.room)
		q.room = nil
	}
	if q.closed && q.messages == 0 {
		select {
		case <-q.drained:
		default:
			close(q.drained)
		}
	}
}

// send waits for room until ctx ends.
func (q *sendQueue) send(ctx context.Context, frames [][]byte) error {
	cost, size, err := q.check(frames)
	if err != nil {
		return err
	}
	for {
		room, err := q.put(frames, cost, size, true)
		if room == nil {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrQueueFull, context.Cause(ctx))
		}
	}
}

// close refuses further messages; those who wait get ErrClosed.
func (q *sendQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
	q.freed()
}

// length returns the number of messages that are not wholly written, and their cost.
func (q *sendQueue) length() (messages, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.messages, q.bytes
}
