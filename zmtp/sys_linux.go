package zmtp

import (
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rawConn gives what net.Conn does not: a look at what the kernel holds for us, and a write that never waits. Not for concurrent use.
type rawConn struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // kept, so that a write allocates nothing
	buf []byte
	n   int
	err error
}

// rawOf returns nil for a connection that is no socket.
func rawOf(nc net.Conn) syscall.RawConn {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// newRawConn returns nil for a connection that is no socket.
func newRawConn(nc net.Conn) *rawConn {
	raw := rawOf(nc)
	if raw == nil {
		return nil
	}
	r := &rawConn{raw: raw}
	r.try = func(fd uintptr) bool {
		for {
			r.n, r.err = unix.Write(int(fd), r.buf)
			if !errors.Is(r.err, unix.EINTR) {
				return true
			}
		}
	}
	return r
}

// write hands the kernel as much as it takes at once, which may be nothing.
func (r *rawConn) write(b []byte) (int, error) {
	r.buf, r.n, r.err = b, 0, nil
	if err := r.raw.Write(r.try); err != nil {
		return 0, err
	}
	r.buf = nil
	if errors.Is(r.err, unix.EAGAIN) {
		r.err = nil
	}
	return max(r.n, 0), r.err
}

// spinFor is how long a read looks again and again before it parks, where the last reads of the connection did not wait longer than
// spinWorth: parking and being woken costs more than that. Between looks other goroutines run.
const (
	spinFor   = 20 * time.Microsecond
	spinWorth = 100 * time.Microsecond
)

// spinReader is a read that spins before it waits. Not for concurrent use.
type spinReader struct {
	raw   syscall.RawConn
	try   func(fd uintptr) bool
	buf   []byte
	n     int
	err   error
	until time.Time // of this read's spinning; zero: it does not, or no longer
	worth bool
}

// newSpinReader returns nil for a connection that is no socket.
func newSpinReader(nc net.Conn) *spinReader {
	raw := rawOf(nc)
	if raw == nil {
		return nil
	}
	r := &spinReader{raw: raw}
	r.try = func(fd uintptr) bool {
		for {
			r.n, r.err = unix.Read(int(fd), r.buf)
			switch {
			case errors.Is(r.err, unix.EINTR):
			case !errors.Is(r.err, unix.EAGAIN):
				return true
			case r.until.IsZero() || time.Now().After(r.until):
				r.until = time.Time{}
				return false
			default:
				runtime.Gosched()
			}
		}
	}
	return r
}

// read is like a net.Conn's.
func (r *spinReader) read(b []byte) (int, error) {
	began := time.Now()
	r.buf, r.n, r.err, r.until = b, 0, nil, time.Time{}
	if r.worth {
		r.until = began.Add(spinFor)
	}
	err := r.raw.Read(r.try)
	r.worth = time.Since(began) <= spinWorth
	r.buf = nil
	switch {
	case err != nil:
		return 0, err
	case r.err != nil:
		return 0, r.err
	case r.n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// unread returns the number of bytes that the kernel holds for us; 0 if that can't be known.
func unread(nc net.Conn) (n int) {
	r := newRawConn(nc)
	if r == nil {
		return 0
	}
	if err := r.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil { // 0 on error
		return 0
	}
	return n
}
