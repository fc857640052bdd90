package transfer

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// SplitName takes an engine's name apart: a host, an IPv6 address in brackets, and a port. Errors: ErrInvalid.
func SplitName(name string) (host string, port uint16, err error) {
	host, p, err := net.SplitHostPort(name)
	n, perr := strconv.ParseUint(p, 10, 16)
	if err != nil || perr != nil || n == 0 || host == "" || strings.ContainsAny(host, " \t\r\n/") {
		return "", 0, fmt.Errorf("%w: peer %.100q, want host:port", ErrInvalid, name)
	}
	return host, uint16(n), nil
}
