package tcp

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

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
