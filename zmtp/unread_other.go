//go:build !linux

package zmtp

import "net"

// unread is not known here: a PULL that pauses for longer than PingInterval may then cost a closing libzmq PUSH what it had not sent.
func unread(net.Conn) int { return 0 }
