package tcp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// vector is reusable room for the arguments of a vectored read: the one of golang.org/x/sys allocates beyond eight.
type vector []unix.Iovec

// readv fills slices, none of them empty, in order.
func (v *vector) readv(fd uintptr, to [][]byte) (int, error) {
	if len(to) == 1 {
		return unix.Read(int(fd), to[0])
	}
	*v = (*v)[:0]
	for _, b := range to {
		var x unix.Iovec
		x.Base = &b[0]
		x.SetLen(len(b))
		*v = append(*v, x)
	}
	n, _, errno := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&(*v)[0])), uintptr(len(*v)))
	clear(*v)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
