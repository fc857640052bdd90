package tcp

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"sync"
	"syscall"
	"time"

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
	checked    bool
	sum, crc   uint32 // checksum as it was sent, and of what has come
}

// add goes on with the checksum.
func (x *entry) add(b []byte) {
	if x.checked {
		x.crc = crc32.Update(x.crc, castagnoli, b)
	}
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
	more   bool          // another request follows at once: statuses may wait
	first  bool          // no request has come yet
	head   [headLen]byte // of the request under way

	// The writes under way. Entry i is dealt with by cursor i mod len(curs).
	entries []entry
	begun   int // entries that have been resolved
	curs    []space.Cursor
	lent    int // cursors at the end of a read that lend memory, from entry now on
	now     int
	behind  int // bytes that follow the payloads: checksums

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

func (s *server) header() (header, error) {
	if err := s.need(headerLen, true); err != nil {
		return header{}, err
	}
	s.c.silent.Store(0)
	s.head = [headLen]byte(s.buf[s.r:])
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
	s.entries, s.begun = append(s.entries[:0], entry{size: h.size, addr: h.addr, checked: s.native && h.flags&sumFlag != 0, sum: h.sum}), 0
	s.entries[0].add(s.head[:])
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
	rows, sums := int(h.addr), h.flags&sumFlag != 0
	n := tableLen(rows)
	if s.need(n, false) != nil {
		return false
	}
	s.entries, s.begun = s.entries[:0], 0
	total := uint64(0)
	for i := range rows {
		b := s.buf[s.r+rowLen*i:]
		x := entry{size: binary.LittleEndian.Uint64(b), addr: binary.LittleEndian.Uint64(b[8:]), checked: sums}
		x.add(b[:rowLen])
		if x.size == 0 || x.size > refusedMax {
			return false
		}
		total += x.size
		s.entries = append(s.entries, x)
	}
	s.r += n
	if total != h.size {
		return false
	}
	more := s.more
	s.more = true // until the last payload
	if sums {
		s.behind = sumsLen(rows)
	}
	ok := s.carry(true)
	s.more = more
	return ok
}

// sums reads the checksums of a table.
func (s *server) sums() bool {
	n := s.behind
	s.behind = 0
	if s.need(n, false) != nil {
		return false
	}
	for i := range s.entries {
		s.entries[i].sum = binary.LittleEndian.Uint32(s.buf[s.r+crc32.Size*i:])
	}
	s.r += n
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

// carry moves the payloads of the entries to memory or to the sink, and answers them.
func (s *server) carry(v2 bool) bool {
	for i := range s.entries {
		if !s.move(i) || s.behind == 0 && v2 && !s.status(s.outcome(i)) {
			return false
		}
	}
	if s.behind == 0 {
		return true
	}
	if !s.sums() {
		return false
	}
	for i := range s.entries {
		if !s.status(s.outcome(i)) {
			return false
		}
	}
	return true
}

// move moves the payload of entry i.
func (s *server) move(i int) bool {
	if s.begun == i {
		s.begin(i)
	}
	x, cur := &s.entries[i], s.cur(i)
	s.direct = x.size >= directFrom
	for cur.Left() > 0 {
		var err error
		switch {
		case s.r < s.w: // what was read ahead
			b := s.buf[s.r:s.w]
			if uint64(len(b)) > cur.Left() {
				b = b[:cur.Left()]
			}
			x.add(b)
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
	if x.err == nil && cur.Sunk() {
		x.err = transfer.ErrSealed
	}
	return true
}

// outcome is the status of entry i. A foreign peer is told that all is well when its write was sunk.
func (s *server) outcome(i int) uint32 {
	switch x := &s.entries[i]; {
	case !s.native:
		return statusOK
	case x.err == nil && x.checked && x.sum != x.crc:
		return s.damaged(i)
	default:
		return codeOf(x.err)
	}
}

// damaged notes that an entry has arrived as something else than was sent. The bytes are in place; the writer fails the room.
func (s *server) damaged(i int) uint32 {
	s.e.counts.corrupt.Add(1)
	s.e.cfg.Logger.Error("bytes were damaged on the way", "peer", s.c.RemoteAddr().String(), "bytes", s.entries[i].size, "sent", s.entries[i].sum, "came", s.entries[i].crc)
	return statusCorrupt
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
		return s.behind + headerLen
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
		s.entries[i+k].add(s.iov[k][:part])
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
