package wire

import (
	"testing"
)

func TestNativeQuiescent(t *testing.T) {
	checkGolden(t, NativeQuiescent{7, 5, 3}, ParseNativeQuiescent, "KVFERRY", "QUIESCENT", "7", "5", "3")
	checkShortened(t, ParseNativeQuiescent, 5, framesOf("KVFERRY", "QUIESCENT", "7", "5", "3"))
	checkRefusals(t, ParseNativeQuiescent,
		refusal{[]string{"ferry", "QUIESCENT", "7", "5", "3"}, ErrUnknownType},
		refusal{[]string{"KVFERRY", "MELTED", "7", "5", "3"}, ErrUnknownType},
	)
}

func FuzzNativeQuiescent(f *testing.F) {
	seed(f, framesOf("KVFERRY", "QUIESCENT", "7", "5", "3"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNativeQuiescent, in) })
}
