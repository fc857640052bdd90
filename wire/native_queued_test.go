package wire

import (
	"testing"

	"github.com/kvferry/kvferry/room"
)

func TestNativeQueued(t *testing.T) {
	checkGolden(t, NativeQueued{3, []room.ID{1, room.MaxID}}, ParseNativeQueued, "KVFERRY", "QUEUED", "3", "2", "\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f")
	checkGolden(t, NativeQueued{Rank: 1}, ParseNativeQueued, "KVFERRY", "QUEUED", "1", "0", "")
	checkShortened(t, ParseNativeQueued, 5, framesOf("KVFERRY", "QUEUED", "3", "2", "\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f"))
	checkRefusals(t, ParseNativeQueued,
		refusal{[]string{"ferry", "QUEUED", "3", "2", "\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f"}, ErrUnknownType},
		refusal{[]string{"KVFERRY", "MELTED", "3", "2", "\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f"}, ErrUnknownType},
	)
	checkRefusals(t, ParseNativeQueued,
		refusal{[]string{"KVFERRY", "QUEUED", "3", "2", "12345678"}, ErrTruncated},
		refusal{[]string{"KVFERRY", "QUEUED", "3", "1", "123456789"}, ErrRange},
		refusal{[]string{"KVFERRY", "QUEUED", "3", "65537", ""}, ErrRange},
		refusal{[]string{"KVFERRY", "QUEUED", "3", "1", "\xff\xff\xff\xff\xff\xff\xff\xff"}, ErrRange},
	)
}

func FuzzNativeQueued(f *testing.F) {
	seed(f, framesOf("KVFERRY", "QUEUED", "3", "2", "\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNativeQueued, in) })
}
