package zmtp

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// Sizes of the send queue, in bytes. Chosen by the package's own benchmarks.
const (
	packMax   = 16 << 10 // messages up to here are copied, many to a chunk; larger ones are written from the caller's memory
	copyFrame = 4 << 10  // frames of a large message up to here are copied together with the headers
	chunkSize = 64 << 10 // a chunk of packed messages takes no more once it has reached this
	writeSize = 1 << 20  // one write takes no more chunks once it has reached this
	spareMax  = 4        // chunks kept for reuse
)

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
}

func newSendQueue(l Limits) *sendQueue {
	return &sendQueue{limits: l, wake: make(chan struct{}, 1), drained: make(chan struct{})}
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
	if q.closed {
		return nil, ErrClosed
	}
	if q.messages >= q.limits.QueueMessages || q.bytes+cost > q.limits.QueueBytes {
		if wait && q.room == nil {
			q.room = make(chan struct{})
		}
		return q.room, ErrQueueFull
	}
	wasEmpty := q.head == len(q.chunks)
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
	if wasEmpty {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
	return nil, nil
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

// take moves queued chunks to b, and appends their bytes to vec.
func (q *sendQueue) take(b *batch, vec net.Buffers) net.Buffers {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.chunks = b.chunks[:0]
	for size := 0; q.head < len(q.chunks) && size < writeSize; q.head++ {
		c := q.chunks[q.head]
		q.chunks[q.head] = nil
		b.chunks = append(b.chunks, c)
		size += c.size
		if c.vec != nil {
			vec = append(vec, c.vec...)
		} else {
			vec = append(vec, c.buf[c.off:])
		}
	}
	if q.head == len(q.chunks) {
		q.chunks, q.head = q.chunks[:0], 0
	}
	return vec
}

// written accounts for a write of b of which the kernel took n bytes, and returns how many messages it took wholly. After a failed write the
// other messages are put back to the front, a partly written one from its beginning: its first part died with the connection.
func (q *sendQueue) written(b *batch, n int, failed error) (messages int) {
	if len(b.chunks) == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var back []*chunk
	for _, c := range b.chunks {
		taken := c.advance(min(n, c.size))
		n -= min(n, taken.size)
		messages += taken.messages
		q.messages -= taken.messages
		q.bytes -= taken.cost
		switch {
		case len(c.cost) > 0:
			back, n = append(back, c), 0
		case c.vec == nil && len(q.spare) < spareMax && cap(c.buf) <= 2*chunkSize:
			c.reset()
			q.spare = append(q.spare, c)
		}
	}
	clear(b.chunks)
	b.chunks = b.chunks[:0]
	if failed != nil && len(back) > 0 {
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
