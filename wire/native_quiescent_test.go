package wire

import (
	"testing"
)

func TestNativeQuiescent(t *testing.T) {
	checkGolden(t, NativeQuiescent{7, 5, 3, 9}, ParseNativeQuiescent, "KVFERRY", "QUIESCENT", "7", "5", "3", "9")
	checkShortened(t, ParseNativeQuiescent, 6, framesOf("KVFERRY", "QUIESCENT", "7", "5", "3", "9"))
	checkRefusals(t, ParseNativeQuiescent,
		refusal{[]string{"ferry", "QUIESCENT", "7", "5", "3", "9"}, ErrUnknownType},
		refusal{[]string{"KVFERRY", "MELTED", "7", "5", "3", "9"}, ErrUnknownType},
	)
}

func FuzzNativeQuiescent(f *testing.F) {
	seed(f, framesOf("KVFERRY", "QUIESCENT", "7", "5", "3", "9"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNativeQuiescent, in) })
}
