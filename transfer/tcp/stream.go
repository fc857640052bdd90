package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// Bounds of a connection's pipeline.
const (
	windowNative  = 4096                   // requests without a status: their statuses fit a socket buffer
	windowForeign = 256                    // as tried with Mooncake's engine, whose own lanes fail beyond some thousands
	copyBelow     = 16 << 10               // payloads below it are copied behind their headers, the others are written from where they are
	bounceLen     = 256 << 10              // headers and copies of one write
	vectorLen     = 128                    // slices of one write
	vectorBytes   = 8 << 20                // their bytes
	sumBytes      = 1 << 18                // payloads of one table with checksums
	looks         = 4                      // a progress deadline is looked at so many times while it runs
	wordWait      = 200 * time.Millisecond // for the status that says why a connection broke
	briefBytes    = 64 << 10               // a part up to it, and up to briefFrags, goes to a native target from one goroutine
	briefFrags    = 512
)

// part is the fragments that one connection carries, with the memory of its writer.
type part struct {
	frags   []transfer.Fragment
	bounce  []byte
	mark    int      // bounce[mark:] is not in vectors yet
	vectors [][]byte // gathered
	bytes   int      // in vectors
	pending [][]byte // of vectors, not written yet
	words   [512 * statusLen]byte
	row     [rowLen]byte // of a table
	loose   bool         // requests were sent whose answers have not come
}

var parts = sync.Pool{New: func() any {
	return &part{bounce: make([]byte, 0, bounceLen), vectors: make([][]byte, 0, vectorLen+2)}
}}

// maxKept is how many fragments a part may have room for when it is kept: a large batch must not hold memory for ever.
const maxKept = 1 << 16

// release gives a part back; it refers to no source any more.
func (x *part) release() {
	clear(x.frags)
	clear(x.vectors[:cap(x.vectors)])
	if cap(x.frags) > maxKept {
		x.frags = nil
	}
	x.frags, x.pending, x.loose = x.frags[:0], nil, false
	x.reset()
	parts.Put(x)
}

func (x *part) reset() {
	x.bounce, x.vectors, x.mark, x.bytes = x.bounce[:0], x.vectors[:0], 0, 0
}

// pulse watches a connection for signs of life in either direction.
type pulse struct {
	beats atomic.Int64
	limit time.Duration
}

// watch is one side's view of a pulse.
type watch struct {
	*pulse
	seen  int64
	since time.Time
}

func (p *pulse) watch() watch { return watch{p, p.beats.Load(), time.Now()} }

// next is the deadline of the next look.
func (w *watch) next() time.Time { return time.Now().Add(w.limit / looks) }

// still reports whether nothing has moved for the limit.
func (w *watch) still() bool {
	now := time.Now()
	if n := w.beats.Load(); n != w.seen {
		w.seen, w.since = n, now
		return false
	}
	return now.Sub(w.since) >= w.limit
}

// stream is one part on its way over one connection: one goroutine writes requests, another reads statuses.
type stream struct {
	p      *peer
	h      *handle
	l      *link
	x      *part
	pulse  pulse
	writer watch
	window int64

	total    atomic.Int64  // requests that will have been sent
	answered atomic.Int64  // statuses read
	room     chan struct{} // has an element when a status has come since the writer looked
	ended    chan struct{} // no more statuses are read
	readErr  error         // then
}

// errBroken is a connection that ended before all statuses had come.
var errBroken = errors.New("connection ended")

// writeV2 writes a part over one connection. One that turns out to have been closed while it was idle is replaced once: the same bytes again
// do no harm. It returns nil when the peer refused, which is the batch's outcome already.
func (p *peer) writeV2(h *handle, d *descriptor, x *part) error {
	for fresh := false; ; fresh = true {
		l, err := p.get(h.ctx, d, fresh)
		if err != nil {
			return err
		}
		s := &stream{p: p, h: h, l: l, x: x, window: windowForeign, room: make(chan struct{}, 1), ended: make(chan struct{})}
		if l.native {
			s.window = windowNative
		}
		s.pulse.limit = p.e.cfg.Progress
		err = s.run(h.ctx)
		if err == nil {
			p.put(l)
			return nil
		}
		if !errors.Is(err, errRefused) {
			x.loose = true
		}
		if h.ctx.Err() != nil {
			err = p.e.ended("write to " + p.name)
			_ = l.c.SetLinger(0) // what the kernel still holds is not sent
		}
		_ = l.c.Close() // of no use any more
		p.put(nil)
		if !fresh && l.reused && s.answered.Load() == 0 && h.ctx.Err() == nil && reset(err) {
			continue
		}
		if errors.Is(err, errRefused) {
			return nil
		}
		return err
	}
}

// run sends all requests and reads as many statuses. The reader runs beside the writer: a target that rejects closes with payload unread, and
// its word would be lost to the reset otherwise. After nil the connection is sound.
func (s *stream) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.l.c.SetDeadline(past) })
	s.total.Store(int64(len(s.x.frags)))
	brief := s.brief()
	if !brief {
		go s.statuses(ctx)
	}
	writeErr := s.send()
	if writeErr != nil { // a status may say why; it is there already, or on its way to a rejected writer
		if ctx.Err() == nil {
			_ = s.l.c.SetReadDeadline(time.Now().Add(wordWait))
			s.total.Store(-1)
		}
		if ctx.Err() != nil {
			_ = s.l.c.SetReadDeadline(past)
		}
	}
	if brief {
		s.statuses(ctx)
	}
	<-s.ended
	sound := stop() // else the deadline is, or will be, in the past
	switch {
	case s.readErr != nil && !errors.Is(s.readErr, errBroken):
		return s.readErr
	case writeErr != nil && !errors.Is(writeErr, errBroken):
		return writeErr
	case s.readErr != nil:
		return s.readErr
	case !sound:
		return transfer.ErrCanceled
	}
	_ = s.l.c.SetDeadline(time.Time{})
	return nil
}

// brief reports whether the part is so small that its statuses can be read when it is written: it fits the socket's buffers, and a native
// target refuses without closing, so that no word of it gets lost meanwhile.
func (s *stream) brief() bool {
	if !s.l.native || len(s.x.frags) > briefFrags {
		return false
	}
	n := 0
	for _, f := range s.x.frags {
		n += len(f.Src)
	}
	return n <= briefBytes
}

// errRefused is a refusal after which the connection can't go on.
var errRefused = errors.New("refused")

// statuses reads status frames, as many as there are requests.
func (s *stream) statuses(ctx context.Context) {
	defer func() {
		close(s.ended)
		if s.readErr != nil { // the writer looks at ended after it has set its deadline
			_ = s.l.c.SetWriteDeadline(past)
		}
	}()
	buf := &s.x.words
	have := 0
	w := s.pulse.watch()
	for {
		_ = s.l.c.SetReadDeadline(w.next())
		total := s.total.Load() // after the deadline, as is ctx: theirs must not be undone
		if answered := s.answered.Load(); total >= 0 && answered >= total {
			return
		}
		if ctx.Err() != nil {
			s.readErr = transfer.ErrCanceled
			return
		}
		if total < 0 {
			_ = s.l.c.SetReadDeadline(time.Now().Add(wordWait))
		}
		n, err := s.l.c.Read(buf[have:])
		have += n
		if s.take(buf[:have]); s.readErr != nil {
			return
		}
		have = copy(buf[:], buf[have/statusLen*statusLen:have])
		if err == nil || n > 0 {
			continue
		}
		timeout := errors.Is(err, os.ErrDeadlineExceeded)
		if timeout && total >= 0 && !w.still() {
			continue
		}
		s.readErr = fmt.Errorf("%w: %w", errBroken, gone("status of "+s.p.name, err))
		return
	}
}

// take reads the whole frames of b.
func (s *stream) take(b []byte) {
	frames := len(b) / statusLen
	for i := range frames {
		code, err := parseStatus(b[i*statusLen:])
		if err != nil {
			s.readErr = fmt.Errorf("%w: %s: %w", transfer.ErrProtocol, s.p.name, err)
			return
		}
		if code != statusOK {
			s.h.refuse(refusal(s.p.name, code))
			if !s.l.native {
				s.readErr = errRefused // the peer closes
				return
			}
		}
	}
	if frames == 0 {
		return
	}
	s.pulse.beats.Add(1)
	s.answered.Add(int64(frames))
	select {
	case s.room <- struct{}{}:
	default:
	}
}

func refusal(name string, code uint32) error {
	switch code {
	case statusSealed:
		return fmt.Errorf("%w: %s", transfer.ErrSealed, name)
	case statusOutOfRange:
		return fmt.Errorf("%w: %s", transfer.ErrOutOfRange, name)
	case statusCorrupt:
		return fmt.Errorf("%w: %s", transfer.ErrCorrupt, name)
	}
	return fmt.Errorf("%w: %s answered status %d", transfer.ErrNotRegistered, name, code)
}

// send writes the requests of the part, until the batch is stopped.
func (s *stream) send() error {
	s.writer = s.pulse.watch()
	s.x.reset()
	for i := 0; i < len(s.x.frags); {
		sent := int64(i)
		if s.h.stopped.Load() {
			return s.stop(sent)
		}
		for sent-s.answered.Load() >= s.window {
			if err := s.flush(); err != nil { // or no status can come
				return err
			}
			select {
			case <-s.room:
			case <-s.ended:
				return errBroken
			}
		}
		n, err := s.add(i)
		if err != nil {
			return err
		}
		i += n
	}
	return s.flush()
}

// stop ends the sending early, so that as many statuses are read as requests were sent.
func (s *stream) stop(sent int64) error {
	if s.l.native {
		s.x.bounce = appendHeader(s.x.bounce, header{op: opSync}) // flushes leave room for it
	}
	err := s.flush()
	s.total.Store(sent)
	_ = s.l.c.SetReadDeadline(past) // the reader may wait for more
	return err
}

// add gathers requests from fragment i on and returns of how many. A small payload is copied behind its header; a large one becomes a vector of
// its own, and towards a native target a row of them follows one table.
func (s *stream) add(i int) (n int, err error) {
	x, f := s.x, s.x.frags[i]
	small := len(f.Src) < copyBelow
	n, need, limit := 1, headerLen, vectorBytes
	if s.l.sums {
		limit = sumBytes
	}
	total := len(f.Src)
	switch {
	case small:
		need += len(f.Src)
	case s.l.native:
		for i+n < len(x.frags) && n < tableMax && len(x.frags[i+n].Src) >= copyBelow && total < limit {
			total += len(x.frags[i+n].Src)
			n++
		}
		need += tableLen(n) + sumsLen(n)
	}
	if len(x.bounce)+need+headerLen > bounceLen || len(x.vectors)+n+1 > vectorLen || x.bytes > vectorBytes {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	h := header{size: uint64(len(f.Src)), addr: f.Dst, op: opWrite | flagV2}
	if s.l.native && i+n < len(x.frags) {
		h.flags = moreFlag
	}
	if s.l.sums {
		h.flags |= sumFlag
	}
	if small {
		x.appendSmall(h, f.Src)
		return 1, nil
	}
	frags := x.frags[i : i+n]
	if n > 1 || s.l.sums {
		h.size, h.addr, h.op = uint64(total), uint64(n), opTable
	}
	x.bounce = appendHeader(x.bounce, h)
	if h.op == opTable {
		for _, f := range frags {
			x.bounce = appendRow(x.bounce, uint64(len(f.Src)), f.Dst)
		}
		x.bounce = pad(x.bounce, tableLen(n)-rowLen*n)
	}
	x.vectors = append(x.vectors, x.bounce[x.mark:])
	x.mark = len(x.bounce)
	for _, f := range frags {
		x.vectors = append(x.vectors, f.Src)
	}
	x.bytes += total
	if s.l.sums { // of what the write has just brought into the processor's cache
		if err := s.flush(); err != nil {
			return 0, err
		}
		x.appendSums(frags)
	}
	return n, nil
}

// appendSmall appends a request with its payload.
func (x *part) appendSmall(h header, payload []byte) {
	at := len(x.bounce)
	x.bounce = append(appendHeader(x.bounce, h), payload...)
	if h.flags&sumFlag != 0 {
		sum := crc32.Checksum(x.bounce[at:at+headLen], castagnoli)
		binary.LittleEndian.PutUint32(x.bounce[at+sumAt:], crc32.Update(sum, castagnoli, payload))
	}
}

// appendSums appends what follows the payloads of a table.
func (x *part) appendSums(frags []transfer.Fragment) {
	for _, f := range frags {
		sum := crc32.Checksum(appendRow(x.row[:0], uint64(len(f.Src)), f.Dst), castagnoli)
		x.bounce = binary.LittleEndian.AppendUint32(x.bounce, crc32.Update(sum, castagnoli, f.Src))
	}
	x.bounce = pad(x.bounce, sumsLen(len(frags))-crc32.Size*len(frags))
}

// flush writes what is gathered.
func (s *stream) flush() error {
	x := s.x
	if x.mark < len(x.bounce) {
		x.vectors = append(x.vectors, x.bounce[x.mark:])
	}
	x.pending = x.vectors
	for len(x.pending) > 0 {
		n, err := s.l.write(s)
		s.p.e.counts.out.Add(uint64(n))
		if n > 0 {
			s.pulse.beats.Add(1)
		}
		switch {
		case errors.Is(err, errBroken), errors.Is(err, transfer.ErrCanceled):
			return err
		case err != nil && !(errors.Is(err, os.ErrDeadlineExceeded) && !s.writer.still()):
			return gone("write to "+s.p.name, err)
		}
	}
	x.reset()
	return nil
}

// waits prepares a wait for room in the socket's buffer, unless the write is to end.
func (s *stream) waits() error {
	_ = s.l.c.SetWriteDeadline(s.writer.next())
	if s.h.ctx.Err() != nil { // looked at after the deadline is set, as is ended: theirs must not be undone
		return transfer.ErrCanceled
	}
	select {
	case <-s.ended:
		return errBroken
	default:
		return nil
	}
}
