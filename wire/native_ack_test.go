package wire

import (
	"testing"
)

func TestNativeAck(t *testing.T) {
	checkGolden(t, NativeAck{7, 5, 3, 9}, ParseNativeAck, "KVFERRY", "ACK", "7", "5", "3", "9")
	checkShortened(t, ParseNativeAck, 6, framesOf("KVFERRY", "ACK", "7", "5", "3", "9"))
	checkRefusals(t, ParseNativeAck,
		refusal{[]string{"ferry", "ACK", "7", "5", "3", "9"}, ErrUnknownType},
		refusal{[]string{"KVFERRY", "MELTED", "7", "5", "3", "9"}, ErrUnknownType},
	)
}

func FuzzNativeAck(f *testing.F) {
	seed(f, framesOf("KVFERRY", "ACK", "7", "5", "3", "9"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNativeAck, in) })
}
