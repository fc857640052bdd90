package tcp

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/space"
)

// Bounds of the target.
const (
	bufferLen  = 64 << 10
	directFrom = 16 << 10        // payloads from this size on are read straight into memory
	acksLen    = 256 * statusLen // statuses gathered at most: less than any initiator's window
	drainTime  = time.Second     // after a rejection, for the peer to read its status before the connection is reset
	drainBytes = 1 << 20         // as well
	lendMax    = 32              // writes that one system call fills
	lendBytes  = 1 << 20         // likewise, from this size on no more
	refusedMax = 1 << 40         // payload of a refused native request that is read and dropped: a terabyte is no batch
	askTime    = 5 * time.Second // for a control message, as upstream's daemon allows
)

// serveControl answers one control message.
func (e *Engine) serveControl(c *conn) {
	c.silent.Store(0)
	_ = c.SetDeadline(time.Now().Add(askTime))
	typ, body, err := readControl(c)
	if err != nil {
		return
	}
	a := e.answer(typ, body)
	if a == nil {
		e.cfg.Logger.Debug("control message dropped", "peer", c.RemoteAddr().String(), "type", typ, "bytes", len(body))
		return
	}
	text, err := json.Marshal(a)
	if err != nil {
		return
	}
	if _, err := c.Write(appendControl(nil, typ, append(text, '\n'))); err != nil {
		return
	}
	_ = c.CloseWrite()
	_, _ = io.CopyN(io.Discard, c, 1) // until the peer closes, which it does when it has the answer
}

var buffers = sync.Pool{New: func() any { return new([bufferLen]byte) }}

// entry is one write of a request. A table has many.
type entry struct {
	size, addr uint64
	err        error // refused
}

// server serves one data connection.
type server struct {
	e    *Engine
	c    *conn
	raw  syscall.RawConn
	acks []byte

	buf    *[bufferLen]byte // borrowed; nil while an idle connection waits
	r, w   int              // buf[r:w] is read ahead
	direct bool             // the last payload was large: the next is likely to be, so only its header is read ahead
	native bool
	more   bool // another request follows at once: statuses may wait
	first  bool // no request has come yet

	// The writes under way. Entry i is dealt with by cursor i mod len(curs).
	entries []entry
	begun   int // entries that have been resolved
	curs    []space.Cursor
	lent    int // cursors at the end of a read that lend memory, from entry now on
	now     int

	// The read under way.
	try    func(uintptr) bool
	iov    [][]byte // memory that is lent, then room in buf
	vector vector
	ahead  int // bytes of buf to read after what is lent
	wait   time.Duration
	idle   bool // buf may be given back while the read waits
	waited bool
	n      int
	err    error
}

// serveData answers requests in order until the peer closes.
func (e *Engine) serveData(c *conn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	s := &server{e: e, c: c, raw: raw, acks: make([]byte, 0, acksLen), first: true}
	s.try = s.tryRead
	s.prepare(1)
	for {
		h, err := s.header()
		if err != nil || !s.request(h) {
			break
		}
	}
	for i := range s.curs {
		s.curs[i].End()
	}
	_ = s.flush() // the peer may have closed its half only
	if s.buf != nil {
		buffers.Put(s.buf)
	}
}

// prepare makes room for reads into n writes at a time.
func (s *server) prepare(n int) {
	s.curs = make([]space.Cursor, n)
	s.iov = make([][]byte, 0, n+1)
	kick := func() { _ = s.c.SetDeadline(past) }
	for i := range s.curs {
		s.curs[i].Kick = kick
	}
}

func (s *server) cur(i int) *space.Cursor { return &s.curs[i%len(s.curs)] }

// sealed reports whether memory that is lent should be given back.
func (s *server) sealed() bool {
	for i := range s.lent {
		if s.cur(s.now + i).Sealed() {
			return true
		}
	}
	return false
}

// errUnsent says that statuses must be sent before anything more is waited for.
var errUnsent = errors.New("statuses wait")

// tryRead reads what there is. While there is nothing, it sends the statuses that wait, sets the deadline, and reports false: wait. It never
// blocks, since memory is lent to it.
func (s *server) tryRead(fd uintptr) bool {
	for {
		if s.buf == nil {
			s.buf = buffers.Get().(*[bufferLen]byte)
		}
		if s.ahead > 0 {
			s.iov = append(s.iov[:s.lent], s.buf[s.w:s.w+s.ahead])
		}
		n, err := s.vector.readv(fd, s.iov)
		switch {
		case err == nil && n == 0:
			s.err = io.EOF
			return true
		case err == nil:
			s.n = n
			return true
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN):
			s.err = err
			return true
		}
		if len(s.acks) > 0 && !s.more {
			n, err := unix.Write(int(fd), s.acks)
			if n == len(s.acks) {
				s.acks = s.acks[:0]
				continue
			}
			if n > 0 {
				s.acks = s.acks[:copy(s.acks, s.acks[n:])]
			}
			s.err = errUnsent
			if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				s.err = err
			}
			return true
		}
		if s.idle && s.w == s.r {
			buffers.Put(s.buf)
			s.buf, s.r, s.w = nil, 0, 0
			clear(s.iov) // it refers to the buffer
			s.iov = s.iov[:0]
			if !s.first {
				s.c.silent.Store(time.Now().UnixNano())
			}
		}
		s.waited = true
		_ = s.c.SetReadDeadline(time.Now().Add(s.wait))
		return s.sealed() // checked after the deadline is set: a kick before would be undone by it
	}
}

// read reads into the memory that is lent, the first s.lent of s.iov, and then up to ahead bytes into the buffer. n counts those of both. n = 0
// without an error: a lease was sealed.
func (s *server) read(ahead int, wait time.Duration) (int, error) {
	if s.r == s.w {
		s.r, s.w = 0, 0
	} else if s.w+ahead > bufferLen {
		s.w = copy(s.buf[:], s.buf[s.r:s.w])
		s.r = 0
	}
	memory := 0
	for _, b := range s.iov[:s.lent] {
		memory += len(b)
	}
	s.ahead, s.wait = min(ahead, bufferLen-s.w), wait
	for {
		s.n, s.err, s.waited = 0, nil, false
		err := s.raw.Read(s.try)
		if err == nil {
			err = s.err
		}
		switch {
		case err == nil:
			if s.n > memory {
				s.w += s.n - memory
			}
			return s.n, nil
		case errors.Is(err, errUnsent) && s.lent == 0:
			if err := s.flush(); err != nil {
				return 0, err
			}
		case errors.Is(err, errUnsent): // the memory must not be held while we wait for the peer
			return 0, err
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, err
		case s.sealed():
			return 0, nil
		case s.waited:
			return 0, err
		default: // a deadline of an earlier read, or of a kick that came late
			_ = s.c.SetReadDeadline(time.Time{})
		}
	}
}

// flush sends the statuses that wait.
func (s *server) flush() error {
	if len(s.acks) == 0 {
		return nil
	}
	_ = s.c.SetWriteDeadline(time.Now().Add(s.e.cfg.Stall))
	_, err := s.c.Write(s.acks)
	s.acks = s.acks[:0]
	return err
}

func (s *server) status(code uint32) bool {
	s.acks = appendStatus(s.acks, code)
	return len(s.acks) < acksLen || s.flush() == nil
}

// need reads until n bytes are ahead. idle: the connection may have nothing to say for long.
func (s *server) need(n int, idle bool) error {
	for s.w-s.r < n {
		ahead, wait := bufferLen, s.e.cfg.Stall
		if s.direct {
			ahead = n - (s.w - s.r)
		}
		s.idle = idle && s.w == s.r
		if s.idle {
			wait = s.e.cfg.Idle
		}
		_, err := s.read(ahead, wait)
		s.idle = false
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *server) header() (header, error) {
	if err := s.need(headerLen, true); err != nil {
		return header{}, err
	}
	s.c.silent.Store(0)
	h := parseHeader(s.buf[s.r:])
	s.r += headerLen
	return h, nil
}

// request serves one request; false ends the connection.
func (s *server) request(h header) bool {
	first := s.first
	s.first = false
	if h.op == opHello && h.size == helloSize && h.addr == helloAddr && first && !s.e.cfg.Foreign && !s.e.cfg.Version1 {
		return s.hello()
	}
	s.more = s.native && h.flags&moreFlag != 0
	if s.native && h.op == opSync {
		return s.flush() == nil
	}
	if s.native && h.op == opTable {
		return s.table(h)
	}
	v2 := h.op&flagV2 != 0
	if h.size == 0 && !v2 { // a no-op in version 1
		return true
	}
	s.entries, s.begun = append(s.entries[:0], entry{size: h.size, addr: h.addr}), 0
	s.begin(0)
	err := s.entries[0].err
	if h.op&^flagV2 != opWrite { // anything else is a read, as upstream has it
		return s.serveRead(err, v2)
	}
	if err != nil && !s.native && !errors.Is(err, transfer.ErrSealed) || err != nil && h.size > refusedMax {
		s.e.cfg.Logger.Debug("write refused", "peer", s.c.RemoteAddr().String(), "bytes", h.size, "error", err)
		return s.reject(v2)
	}
	return s.carry(v2)
}

// table serves a table of writes: header, count entries of size and address, padding, and then the payloads one after the other.
func (s *server) table(h header) bool {
	if h.addr == 0 || h.addr > tableMax {
		return false
	}
	n := tableLen(int(h.addr))
	if s.need(n, false) != nil {
		return false
	}
	s.entries, s.begun = s.entries[:0], 0
	total := uint64(0)
	for i := range int(h.addr) {
		b := s.buf[s.r+16*i:]
		x := entry{size: binary.LittleEndian.Uint64(b), addr: binary.LittleEndian.Uint64(b[8:])}
		if x.size == 0 || x.size > refusedMax {
			return false
		}
		total += x.size
		s.entries = append(s.entries, x)
	}
	s.r += n
	more := s.more
	s.more = true // until the last payload
	return total == h.size && s.carry(true) && s.answered(more)
}

// answered lets statuses go again.
func (s *server) answered(more bool) bool {
	s.more = more
	return true
}

// begin resolves the addresses of an entry.
func (s *server) begin(i int) {
	x := &s.entries[i]
	x.err = s.e.space.Begin(s.cur(i), x.addr, x.size)
	if x.err != nil {
		s.e.counts.refused.Add(1)
	}
	s.begun = i + 1
}

// hello begins a native connection.
func (s *server) hello() bool {
	if s.need(helloLen, false) != nil {
		return false
	}
	var from, to Instance
	s.r += copy(from[:], s.buf[s.r:])
	s.r += copy(to[:], s.buf[s.r:])
	if to != s.e.cfg.Instance {
		_ = s.status(statusOtherInstance) && s.flush() == nil
		return false
	}
	s.native = true
	s.prepare(lendMax)
	s.e.cfg.Logger.Debug("native data connection", "peer", s.c.RemoteAddr().String(), "instance", from)
	return s.status(statusOK)
}

// carry moves the payloads of the entries to memory or to the sink.
func (s *server) carry(v2 bool) bool {
	for i := range s.entries {
		if s.begun == i {
			s.begin(i)
		}
		cur := s.cur(i)
		s.direct = s.entries[i].size >= directFrom
		for cur.Left() > 0 {
			var err error
			switch {
			case s.r < s.w: // what was read ahead
				b := s.buf[s.r:s.w]
				if uint64(len(b)) > cur.Left() {
					b = b[:cur.Left()]
				}
				s.r += s.place(cur, b)
			case s.direct:
				err = s.readDirect(i)
			default:
				_, err = s.read(bufferLen, s.e.cfg.Stall)
			}
			if err != nil {
				s.e.cfg.Logger.Debug("write cut", "peer", s.c.RemoteAddr().String(), "left", cur.Left(), "error", err)
				return false
			}
		}
		code := uint32(statusOK)
		if err := s.entries[i].err; s.native {
			if err == nil && cur.Sunk() {
				err = transfer.ErrSealed
			}
			code = codeOf(err)
		}
		if v2 && !s.status(code) {
			return false
		}
	}
	return true
}

// place copies bytes that were read ahead, of the write under way, and returns how many are dealt with.
func (s *server) place(cur *space.Cursor, b []byte) int {
	if n := cur.Copy(b); n > 0 {
		s.e.counts.in.Add(uint64(n))
		return n
	}
	cur.Discard(len(b))
	s.e.counts.sunk.Add(uint64(len(b)))
	return len(b)
}

// lend borrows the memory of entry i and of those after it, as much as one read may fill. It returns how much of the buffer may follow.
func (s *server) lend(i int) (ahead int) {
	s.iov, s.now, s.lent = s.iov[:0], i, 0
	for bytes := 0; i < len(s.entries) && s.lent < len(s.curs) && bytes < lendBytes; i++ {
		if s.begun == i {
			s.begin(i)
		}
		cur := s.cur(i)
		mem := cur.Next(0)
		if mem == nil { // the sink
			return 0
		}
		s.iov = append(s.iov, mem)
		s.lent++
		bytes += len(mem)
		if uint64(len(mem)) < cur.Left() {
			return 0
		}
	}
	if i == len(s.entries) {
		return headerLen
	}
	return 0
}

// readDirect reads from the socket into the memory of entry i and those after it, with the header that follows.
func (s *server) readDirect(i int) error {
	ahead := s.lend(i)
	if s.lent == 0 {
		_, err := s.read(int(min(s.cur(i).Left(), bufferLen)), s.e.cfg.Stall)
		return err // place drops it
	}
	n, err := s.read(ahead, s.e.cfg.Stall)
	lent := s.lent
	s.lent = 0
	for k := range lent {
		part := min(n, len(s.iov[k]))
		s.cur(i + k).Place(part)
		s.e.counts.in.Add(uint64(part))
		n -= part
	}
	s.iov = s.iov[:0]
	if errors.Is(err, errUnsent) {
		return s.flush()
	}
	return err
}

func codeOf(err error) uint32 {
	switch {
	case err == nil:
		return statusOK
	case errors.Is(err, transfer.ErrSealed):
		return statusSealed
	case errors.Is(err, transfer.ErrNotRegistered):
		return statusNotRegistered
	}
	return statusOutOfRange
}

// reject answers a request that is not admitted, and ends the connection as upstream's targets do.
func (s *server) reject(v2 bool) bool {
	if !v2 {
		_ = s.flush()        // of earlier requests
		_ = s.c.SetLinger(0) // payload may have been read ahead, and a clean end would tell the peer that all is well
		return false
	}
	if !s.status(statusRejected) || s.flush() != nil {
		return false
	}
	_ = s.c.CloseWrite()
	_ = s.c.SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.CopyN(io.Discard, s.c, drainBytes)
	return false
}

// serveRead answers a READ: of an open lease, its bytes; of anything else, a refusal. err is Begin's.
func (s *server) serveRead(err error, v2 bool) bool {
	if err != nil {
		if s.native {
			return s.status(codeOf(err))
		}
		return s.reject(v2)
	}
	cur := s.cur(0)
	cur.Read()
	if v2 && !s.status(statusOK) || s.flush() != nil {
		return false
	}
	for cur.Left() > 0 {
		_ = s.c.SetWriteDeadline(time.Now().Add(s.e.cfg.Stall)) // before Next, so that no kick is undone
		mem := cur.Next(0)
		if mem == nil {
			return false // sealed in the middle: the rest can't be had
		}
		n, err := s.c.Write(mem)
		cur.Place(n)
		if err != nil && cur.Left() > 0 {
			return false
		}
	}
	_ = s.c.SetDeadline(time.Time{})
	return true
}
