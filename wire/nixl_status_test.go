package wire

import (
	"testing"

	"github.com/kvferry/kvferry/room"
)

func TestNixlStatus(t *testing.T) {
	checkGolden(t, NixlStatus{room.MaxID, room.Failed, 3, "réseau"}, ParseNixlStatus, "KV_STATUS", "9223372036854775807", "0", "3", "réseau")
	checkGolden(t, NixlStatus{7, room.Success, 0, ""}, ParseNixlStatus, "KV_STATUS", "7", "4", "0", "")
	checkShortened(t, ParseNixlStatus, 4, framesOf("KV_STATUS", "7", "4", "0"))
	checkRefusals(t, ParseNixlStatus,
		refusal{[]string{"7", "4", "0"}, ErrUnknownType},
		refusal{[]string{"KV_STATUS", "7", "5", "0"}, ErrRange},
	)
}

func FuzzNixlStatus(f *testing.F) {
	seed(f, framesOf("KV_STATUS", "7", "0", "3", "why"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNixlStatus, in) })
}
