package transfer_test

import (
	"errors"
	"testing"

	"github.com/kvferry/kvferry/transfer"
)

func TestSplitName(t *testing.T) {
	for name, want := range map[string]struct {
		host string
		port uint16
	}{"10.0.0.7:15492": {"10.0.0.7", 15492}, "[fe80::1%eth0]:1": {"fe80::1%eth0", 1}, "node-a:65535": {"node-a", 65535}} {
		if host, port, err := transfer.SplitName(name); err != nil || host != want.host || port != want.port {
			t.Errorf("%q: %q, %d, %v", name, host, port, err)
		}
	}
	for _, name := range []string{"", "a", ":1", "a:", "a:0", "a:65536", "a:-1", "a:x", "a b:1", "::1:1", "[::1]", "a/b:1"} {
		if _, _, err := transfer.SplitName(name); !errors.Is(err, transfer.ErrInvalid) {
			t.Errorf("%q: %v, want ErrInvalid", name, err)
		}
	}
}
