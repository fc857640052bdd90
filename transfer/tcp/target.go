package tcp

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/space"
)

// Bounds of the target.
const (
	bufferLen  = 64 << 10
	directFrom = 16 << 10         // payloads from this size on are read straight into memory, their headers on their own
	drainTime  = time.Second      // after a rejection, for the peer to read its status
	drainBytes = 1 << 20          //
	stallTime  = 30 * time.Second // a header or payload that has begun and does not go on
	askTime    = 5 * time.Second  // a control message
)

// serveControl answers one control message.
func (e *Engine) serveControl(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(askTime))
	typ, body, err := readControl(c)
	if err != nil {
		return
	}
	var answer any
	switch typ {
	case typeMetadata:
		answer = e.describe()
	case typeNotify:
		var n struct {
			Name string `json:"name"`
			Msg  string `json:"notify_msg"`
		}
		if json.Unmarshal(body, &n) != nil {
			return
		}
		answer = map[string]string{"name": "", "notify_msg": "success"}
	case typeProbe:
		answer = map[string]string{"status": "success"}
	case typeConnection, typeOld:
		if !json.Valid(body) {
			return
		}
		answer = map[string]any{"local_gid": "", "local_lid": 0, "local_nic_path": "", "payload": "", "peer_nic_path": "", "qp_num": []int{}, "reply_msg": "transport not supported"}
	default:
		return
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return
	}
	if _, err := c.Write(appendControl(nil, typ, append(text, '\n'))); err != nil {
		return
	}
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.CopyN(io.Discard, c, 1) // until the peer closes
}

func (e *Engine) describe() descriptor {
	d := descriptor{Name: e.name, Protocol: "tcp", DataHost: e.cfg.Advertise, DataPort: portOf(e.data), ProtoVersion: 2, Native: 1, Buffers: []json.RawMessage{}}
	if e.cfg.Foreign {
		d.Native = 0
	}
	if e.cfg.Version1 {
		d.ProtoVersion, d.Native = 0, 0
	}
	return d
}

// server serves one data connection.
type server struct {
	e      *Engine
	c      *net.TCPConn
	buf    []byte
	r, w   int // buf[r:w] is read ahead
	direct bool
	native bool
	acks   []byte
	kicked func()
}

// serveData answers requests in order until the peer closes.
func (e *Engine) serveData(conn net.Conn) {
	s := &server{e: e, c: conn.(*net.TCPConn), buf: make([]byte, bufferLen), acks: make([]byte, 0, 4096)}
	s.kicked = func() { _ = s.c.SetDeadline(time.Unix(1, 0)) }
	for {
		h, err := s.header()
		if err != nil {
			return
		}
		if !s.request(h) {
			return
		}
	}
}

// header reads the next header. Statuses that wait are sent before anything is waited for.
func (s *server) header() (header, error) {
	if s.w-s.r < headerLen {
		if err := s.flush(); err != nil {
			return header{}, err
		}
	}
	for first := true; s.w-s.r < headerLen; first = false {
		if s.r > 0 {
			s.w = copy(s.buf, s.buf[s.r:s.w])
			s.r = 0
		}
		limit := len(s.buf)
		if s.direct {
			limit = headerLen
		}
		wait := stallTime
		if first && s.w == 0 {
			wait = s.e.cfg.Idle
		}
		_ = s.c.SetReadDeadline(time.Now().Add(wait))
		n, err := s.c.Read(s.buf[s.w:limit])
		s.w += n
		if err != nil {
			return header{}, err
		}
	}
	h := parseHeader(s.buf[s.r:])
	s.r += headerLen
	return h, nil
}

func (s *server) flush() error {
	if len(s.acks) == 0 {
		return nil
	}
	_ = s.c.SetWriteDeadline(time.Now().Add(stallTime))
	_, err := s.c.Write(s.acks)
	s.acks = s.acks[:0]
	return err
}

func (s *server) status(code uint32) bool {
	s.acks = appendStatus(s.acks, code)
	return len(s.acks) < cap(s.acks)-statusLen || s.flush() == nil
}

// request serves one request; false ends the connection.
func (s *server) request(h header) bool {
	if h.op == opHello && h.size == helloSize && h.addr == helloAddr && !s.e.cfg.Foreign && !s.e.cfg.Version1 {
		s.native = true
		return s.status(statusOK)
	}
	v2 := h.op&flagV2 != 0
	if h.size == 0 && !v2 {
		return true
	}
	s.direct = h.size >= directFrom
	cur, err := s.e.space.Begin(h.addr, h.size, s.kicked)
	if h.op&^flagV2 != opWrite {
		return s.read(h, cur, err, v2)
	}
	if err != nil && !errors.Is(err, transfer.ErrSealed) || err != nil && s.native {
		return s.refuse(h, err, v2)
	}
	if !s.payload(cur) {
		return false
	}
	if !v2 {
		return true
	}
	if s.native && cur.Sunk() {
		return s.status(statusSealed)
	}
	return s.status(statusOK)
}

// payload moves the bytes of a write to memory or to the sink.
func (s *server) payload(cur *space.Cursor) bool {
	for cur.Left() > 0 {
		_ = s.c.SetReadDeadline(time.Now().Add(stallTime)) // before Next, so that a kick that follows it is not undone
		mem := cur.Next(0)
		if mem == nil {
			n, err := s.sink(cur.Left())
			cur.Discard(n)
			if err != nil {
				return false
			}
			continue
		}
		n, err := s.fill(mem)
		cur.Place(n)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if err != nil && n == 0 && !s.stalled(cur) {
			return false
		}
	}
	return true
}

// stalled tells a kick from a peer that has stopped sending: after a kick the lease is sealed.
func (s *server) stalled(cur *space.Cursor) (goOn bool) {
	mem := cur.Next(1)
	if mem == nil {
		return true
	}
	cur.Place(0)
	return false
}

// fill reads into memory: what was read ahead, else straight from the socket.
func (s *server) fill(mem []byte) (int, error) {
	if s.r < s.w {
		n := copy(mem, s.buf[s.r:s.w])
		s.r += n
		return n, nil
	}
	if len(mem) < directFrom && !s.direct {
		s.r, s.w = 0, 0
		n, err := s.c.Read(s.buf)
		s.w = n
		n = copy(mem, s.buf[:n])
		s.r = n
		return n, err
	}
	return s.c.Read(mem)
}

// sink reads and drops up to n bytes.
func (s *server) sink(n uint64) (int, error) {
	if s.r < s.w {
		k := min(s.w-s.r, int(min(n, bufferLen)))
		s.r += k
		return k, nil
	}
	s.r, s.w = 0, 0
	_ = s.c.SetReadDeadline(time.Now().Add(stallTime))
	return s.c.Read(s.buf[:min(n, bufferLen)])
}

func codeOf(err error) uint32 {
	switch {
	case errors.Is(err, transfer.ErrSealed):
		return statusSealed
	case errors.Is(err, transfer.ErrNotRegistered):
		return statusNotRegistered
	}
	return statusOutOfRange
}

// refuse answers a write that is not admitted. A native peer gets the reason and the connection goes on; of others it ends, as upstream's do.
func (s *server) refuse(h header, err error, v2 bool) bool {
	s.e.cfg.Logger.Debug("write refused", "peer", s.c.RemoteAddr(), "bytes", h.size, "error", err)
	if s.native {
		for left := h.size; left > 0; {
			n, err := s.sink(left)
			left -= uint64(n)
			if err != nil {
				return false
			}
		}
		return s.status(codeOf(err))
	}
	if v2 && s.status(statusRejected) && s.flush() == nil {
		_ = s.c.CloseWrite()
		_ = s.c.SetReadDeadline(time.Now().Add(drainTime))
		_, _ = io.CopyN(io.Discard, s.c, drainBytes)
	}
	return false
}

// read answers a READ: of an open lease, its bytes; of anything else, a refusal.
func (s *server) read(h header, cur *space.Cursor, err error, v2 bool) bool {
	if err != nil {
		if s.native {
			return s.status(codeOf(err))
		}
		if v2 && s.status(statusRejected) {
			_ = s.flush()
		}
		return false
	}
	if v2 && !s.status(statusOK) || s.flush() != nil {
		return false
	}
	for cur.Left() > 0 {
		_ = s.c.SetWriteDeadline(time.Now().Add(stallTime)) // before Next, as above
		mem := cur.Next(0)
		if mem == nil {
			return false // sealed in the middle: the rest can't be had
		}
		n, err := s.c.Write(mem)
		cur.Pass(n)
		if err != nil {
			return false
		}
	}
	return true
}
