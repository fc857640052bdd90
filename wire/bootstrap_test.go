package wire

import (
	"testing"
)

func TestBootstrap(t *testing.T) {
	checkGolden(t, Bootstrap{7, Addr{"10.0.0.1", 7001}}, ParseBootstrap, "BOOTSTRAP", "7", "10.0.0.1", "7001")
	checkShortened(t, ParseBootstrap, 4, framesOf("BOOTSTRAP", "7", "10.0.0.1", "7001"))
	checkRefusals(t, ParseBootstrap,
		refusal{[]string{"BOOT", "7", "10.0.0.1", "7001"}, ErrUnknownType},
		refusal{[]string{"BOOTSTRAP", "7", "[::1]", "7001"}, ErrRange},
		refusal{[]string{"BOOTSTRAP", "7", "10.0.0.1", "-1"}, ErrRange},
	)
}

func FuzzBootstrap(f *testing.F) {
	seed(f, framesOf("BOOTSTRAP", "7", "10.0.0.1", "7001"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseBootstrap, in) })
}
