package drill

import (
	"encoding/binary"
	"fmt"
)

// piece is a run of bytes of one direction of a connection, whole as far as its scanner knows.
type piece struct {
	raw     []byte
	frames  [][]byte // control: of a message; nil for greeting and commands
	payload bool     // data: bytes of pages
}

// scanner cuts a stream into pieces. next returns nothing while it needs more bytes.
type scanner interface {
	feed(b []byte)
	next() (piece, bool)
}

// plain makes a piece of whatever comes.
type plain struct{ buf []byte }

func (s *plain) feed(b []byte) { s.buf = append(s.buf, b...) }

func (s *plain) next() (piece, bool) {
	if len(s.buf) == 0 {
		return piece{}, false
	}
	p := piece{raw: s.buf}
	s.buf = nil
	return p, true
}

// zmtpScanner finds messages in ZMTP 3.x with the NULL mechanism.
type zmtpScanner struct {
	buf    []byte
	greet  bool // the greeting has passed
	frames [][2]int
	pos    int // frames before it are whole
}

const (
	zmtpGreeting = 64
	zmtpMore     = 1
	zmtpLong     = 2
	zmtpCommand  = 4
)

func (s *zmtpScanner) feed(b []byte) { s.buf = append(s.buf, b...) }

func (s *zmtpScanner) next() (piece, bool) {
	if !s.greet {
		if len(s.buf) < zmtpGreeting {
			return piece{}, false
		}
		s.greet = true
		return s.cut(zmtpGreeting, nil), true
	}
	for {
		b := s.buf[s.pos:]
		if len(b) < 2 || b[0]&zmtpLong != 0 && len(b) < 9 {
			return piece{}, false
		}
		flags, head, size := b[0], 2, uint64(b[1])
		if flags&zmtpLong != 0 {
			head, size = 9, binary.BigEndian.Uint64(b[1:])
		}
		if uint64(len(b)-head) < size {
			return piece{}, false
		}
		end := s.pos + head + int(size)
		if flags&zmtpCommand != 0 {
			return s.cut(end, nil), true
		}
		s.frames = append(s.frames, [2]int{s.pos + head, end})
		s.pos = end
		if flags&zmtpMore == 0 {
			return s.cut(end, s.frames), true
		}
	}
}

func (s *zmtpScanner) cut(n int, frames [][2]int) piece {
	p := piece{raw: append([]byte(nil), s.buf[:n]...)}
	for _, f := range frames {
		p.frames = append(p.frames, p.raw[f[0]:f[1]])
	}
	s.buf = append(s.buf[:0], s.buf[n:]...)
	s.pos, s.frames = 0, s.frames[:0]
	return p
}

// dataScanner tells payload from headers in the tcp engine's data stream. It follows package tcp's frame.go.
type dataScanner struct {
	buf     []byte
	left    uint64 // of the payload that is passing
	sums    int    // bytes of checksums behind it
	payload bool
	broken  error
}

const (
	dataHeader = 24
	dataHello  = 0x4b
	dataTable  = 0x4d
	dataSync   = 0x4c
	dataSums   = 2 // flag of a header
	helloBody  = 32
)

func (s *dataScanner) feed(b []byte) { s.buf = append(s.buf, b...) }

func (s *dataScanner) next() (piece, bool) {
	if len(s.buf) == 0 {
		return piece{}, false
	}
	if s.left > 0 || s.broken != nil {
		n := len(s.buf)
		if s.broken == nil && uint64(n) > s.left {
			n = int(s.left)
		}
		s.left -= min(s.left, uint64(n))
		return s.cut(n, s.payload), true
	}
	if s.sums > 0 {
		n := min(s.sums, len(s.buf))
		s.sums -= n
		return s.cut(n, false), true
	}
	if len(s.buf) < dataHeader {
		return piece{}, false
	}
	size, addr := binary.LittleEndian.Uint64(s.buf), binary.LittleEndian.Uint64(s.buf[8:])
	n := dataHeader
	switch s.buf[16] {
	case dataHello:
		n, size = n+helloBody, 0
	case dataSync:
		size = 0
	case dataTable:
		n = (dataHeader + 16*int(min(addr, 1<<16)) + 63) / 64 * 64
		if s.buf[17]&dataSums != 0 && len(s.buf) >= n {
			s.sums = (4*int(min(addr, 1<<16)) + 63) / 64 * 64
		}
	}
	if len(s.buf) < n {
		return piece{}, false
	}
	if size > 1<<40 {
		s.broken = fmt.Errorf("payload of %d bytes", size) // no stream of ours: let it pass as it is
	}
	s.left, s.payload = size, true
	return s.cut(n, false), true
}

func (s *dataScanner) cut(n int, payload bool) piece {
	p := piece{raw: append([]byte(nil), s.buf[:n]...), payload: payload}
	s.buf = append(s.buf[:0], s.buf[n:]...)
	return p
}
