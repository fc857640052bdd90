package wire

import (
	"testing"

	"github.com/kvferry/kvferry/room"
)

func TestNativeStatus(t *testing.T) {
	checkGolden(t, NativeStatus{7, 1<<64 - 1, room.Failed, 3, 9, room.TransferFailed, "link down"}, ParseNativeStatus, "KVFERRY", "STATUS", "7", "18446744073709551615", "0", "3", "9", "transfer_failed", "link down")
	checkGolden(t, NativeStatus{Room: 7, Status: room.Success}, ParseNativeStatus, "KVFERRY", "STATUS", "7", "0", "4", "0", "0", "", "")
	checkShortened(t, ParseNativeStatus, 9, framesOf("KVFERRY", "STATUS", "7", "18446744073709551615", "0", "3", "9", "transfer_failed", "link down"))
	checkRefusals(t, ParseNativeStatus,
		refusal{[]string{"ferry", "STATUS", "7", "18446744073709551615", "0", "3", "9", "transfer_failed", "link down"}, ErrUnknownType},
		refusal{[]string{"KVFERRY", "MELTED", "7", "18446744073709551615", "0", "3", "9", "transfer_failed", "link down"}, ErrUnknownType},
	)
	// A code of a newer version must not hide the status.
	m, err := ParseNativeStatus(framesOf("KVFERRY", "STATUS", "7", "1", "0", "0", "1", "melted", "hot", "a frame of a newer version"))
	if err != nil || m.Code != room.PeerFailed || m.Text != "hot" {
		t.Errorf("%+v, %v", m, err)
	}
}

func FuzzNativeStatus(f *testing.F) {
	seed(f, framesOf("KVFERRY", "STATUS", "7", "18446744073709551615", "0", "3", "9", "transfer_failed", "link down"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNativeStatus, in) })
}
