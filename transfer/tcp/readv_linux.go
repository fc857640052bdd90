package tcp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// vector is reusable room for the arguments of a vectored call: those of golang.org/x/sys and of package net allocate.
type vector []unix.Iovec

// readv fills slices, none of them empty, in order.
func (v *vector) readv(fd uintptr, to [][]byte) (int, error) {
	if len(to) == 1 {
		return unix.Read(int(fd), to[0])
	}
	return v.call(unix.SYS_READV, fd, to)
}

// writev writes slices, none of them empty, in order.
func (v *vector) writev(fd uintptr, from [][]byte) (int, error) {
	if len(from) == 1 {
		return unix.Write(int(fd), from[0])
	}
	return v.call(unix.SYS_WRITEV, fd, from)
}

func (v *vector) call(trap, fd uintptr, list [][]byte) (int, error) {
	*v = (*v)[:0]
	for _, b := range list {
		var x unix.Iovec
		x.Base = &b[0]
		x.SetLen(len(b))
		*v = append(*v, x)
	}
	n, _, errno := unix.Syscall(trap, fd, uintptr(unsafe.Pointer(&(*v)[0])), uintptr(len(*v)))
	clear(*v)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
