package wire

import (
	"testing"

	"github.com/kvferry/kvferry/room"
)

func TestNativeRefused(t *testing.T) {
	checkGolden(t, NativeRefused{7, 5, 3, room.Timeout, ""}, ParseNativeRefused, "KVFERRY", "REFUSED", "7", "5", "3", "timeout", "")
	checkShortened(t, ParseNativeRefused, 7, framesOf("KVFERRY", "REFUSED", "7", "5", "3", "timeout", ""))
	checkRefusals(t, ParseNativeRefused,
		refusal{[]string{"ferry", "REFUSED", "7", "5", "3", "timeout", ""}, ErrUnknownType},
		refusal{[]string{"KVFERRY", "MELTED", "7", "5", "3", "timeout", ""}, ErrUnknownType},
	)
}

func FuzzNativeRefused(f *testing.F) {
	seed(f, framesOf("KVFERRY", "REFUSED", "7", "5", "3", "timeout", ""))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNativeRefused, in) })
}
