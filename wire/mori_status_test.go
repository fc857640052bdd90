package wire

import (
	"testing"

	"github.com/kvferry/kvferry/room"
)

func TestMoriStatus(t *testing.T) {
	checkGolden(t, MoriStatus{room.MaxID, room.Failed, 3, "réseau"}, ParseMoriStatus, "MoriMsgGuard", "9223372036854775807", "0", "3", "réseau")
	checkGolden(t, MoriStatus{7, room.Success, 0, ""}, ParseMoriStatus, "MoriMsgGuard", "7", "4", "0", "")
	checkShortened(t, ParseMoriStatus, 4, framesOf("MoriMsgGuard", "7", "4", "0"))
	checkRefusals(t, ParseMoriStatus,
		refusal{[]string{"7", "4", "0"}, ErrUnknownType},
		refusal{[]string{"MoriMsgGuard", "7", "5", "0"}, ErrRange},
	)
}

func FuzzMoriStatus(f *testing.F) {
	seed(f, framesOf("MoriMsgGuard", "7", "0", "3", "why"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseMoriStatus, in) })
}
