//go:build !linux

package zmtp

import "net"

type rawConn struct{}

// newRawConn: all writes are the writer's here.
func newRawConn(net.Conn) *rawConn { return nil }

func (*rawConn) write([]byte) (int, error) { return 0, nil }

// unread is not known here: a PULL that pauses for longer than PingInterval may then cost a closing libzmq PUSH what it had not sent.
func unread(net.Conn) int { return 0 }

type spinReader struct{}

func newSpinReader(net.Conn) *spinReader { return nil }

func (*spinReader) read([]byte) (int, error) { return 0, nil }
