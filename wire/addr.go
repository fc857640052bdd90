package wire

import (
	"strconv"
	"strings"
)

// Addr is the control socket of a rank as the frames carry it. The zero value means that none was told.
type Addr struct {
	IP   string // host name or address; IPv6 without brackets
	Port uint16
}

// IsZero reports whether no address was told.
func (a Addr) IsZero() bool { return a == Addr{} }

// Endpoint is a in ZeroMQ's form, IPv6 in brackets.
func (a Addr) Endpoint() string {
	host := a.IP
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "tcp://" + host + ":" + strconv.Itoa(int(a.Port))
}
