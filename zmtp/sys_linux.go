package zmtp

import (
	"errors"
	"net"
	"syscall"

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

// newRawConn returns nil for a connection that is no socket.
func newRawConn(nc net.Conn) *rawConn {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
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
