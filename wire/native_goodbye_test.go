package wire

import (
	"errors"
	"testing"

	"github.com/kvferry/kvferry/room"
)

func TestNativeGoodbye(t *testing.T) {
	checkGolden(t, NativeGoodbye{room.Draining, "rolling update"}, ParseNativeGoodbye, "KVFERRY", "GOODBYE", "draining", "rolling update")
	checkShortened(t, ParseNativeGoodbye, 4, framesOf("KVFERRY", "GOODBYE", "draining", "rolling update"))
	checkRefusals(t, ParseNativeGoodbye,
		refusal{[]string{"ferry", "GOODBYE", "draining", "rolling update"}, ErrUnknownType},
		refusal{[]string{"KVFERRY", "MELTED", "draining", "rolling update"}, ErrUnknownType},
	)
	// None of the readers takes another's message.
	frames := NativeGoodbye{}.AppendFrames(nil)
	_, err := ParseNativeAck(frames)
	if !errors.Is(err, ErrUnknownType) {
		t.Errorf("%v, want ErrUnknownType", err)
	}
}

func FuzzNativeGoodbye(f *testing.F) {
	seed(f, framesOf("KVFERRY", "GOODBYE", "draining", "rolling update"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNativeGoodbye, in) })
}
