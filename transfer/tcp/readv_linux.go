package tcp

import "golang.org/x/sys/unix"

// readv fills the first slice, then the second.
func readv(fd uintptr, iov *[2][]byte) (int, error) {
	if len(iov[1]) == 0 {
		return unix.Read(int(fd), iov[0])
	}
	if len(iov[0]) == 0 {
		return unix.Read(int(fd), iov[1])
	}
	return unix.Readv(int(fd), iov[:])
}
