//go:build !linux

package tcp

import "golang.org/x/sys/unix"

type vector struct{}

// readv fills slices, none of them empty: here only the first, so that each page and each header costs a system call of its own.
func (*vector) readv(fd uintptr, to [][]byte) (int, error) { return unix.Read(int(fd), to[0]) }

// writev writes the first of slices.
func (*vector) writev(fd uintptr, from [][]byte) (int, error) { return unix.Write(int(fd), from[0]) }
