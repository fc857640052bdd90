package wire

import (
	"testing"

	"github.com/kvferry/kvferry/room"
)

func TestNativeAbort(t *testing.T) {
	checkGolden(t, NativeAbort{7, 5, Addr{"10.0.0.2", 7002}, 9, room.ClientGone, "bye"}, ParseNativeAbort, "KVFERRY", "ABORT", "7", "5", "10.0.0.2", "7002", "9", "client_gone", "bye")
	checkShortened(t, ParseNativeAbort, 9, framesOf("KVFERRY", "ABORT", "7", "5", "10.0.0.2", "7002", "9", "client_gone", "bye"))
	checkRefusals(t, ParseNativeAbort,
		refusal{[]string{"ferry", "ABORT", "7", "5", "10.0.0.2", "7002", "9", "client_gone", "bye"}, ErrUnknownType},
		refusal{[]string{"KVFERRY", "MELTED", "7", "5", "10.0.0.2", "7002", "9", "client_gone", "bye"}, ErrUnknownType},
	)
}

func FuzzNativeAbort(f *testing.F) {
	seed(f, framesOf("KVFERRY", "ABORT", "7", "5", "10.0.0.2", "7002", "9", "client_gone", "bye"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNativeAbort, in) })
}
