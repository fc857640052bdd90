//go:build !linux

package tcp

import "golang.org/x/sys/unix"

// readv fills the first slice, or the second if the first is empty: the header that follows a payload costs a system call of its own here.
func readv(fd uintptr, iov *[2][]byte) (int, error) {
	if len(iov[0]) == 0 {
		return unix.Read(int(fd), iov[1])
	}
	return unix.Read(int(fd), iov[0])
}
