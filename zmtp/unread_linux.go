package zmtp

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unread returns the number of bytes that the kernel holds for us; 0 if that can't be known.
func unread(nc net.Conn) (n int) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	err = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // 0 on error
	if err != nil {
		return 0
	}
	return n
}
