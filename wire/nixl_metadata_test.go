package wire

import (
	"testing"
)

func TestNixlMetadata(t *testing.T) {
	m := NixlMetadata{7, Addr{"10.0.0.2", 7002}, "agent-1", []int32{3, 9}, 3, 2, [][]int32{{1}}, 48, false}
	frames := []string{
		"NixlMsgGuard", "7", "10.0.0.2", "7002", "agent-1", "\x03\x00\x00\x00\x09\x00\x00\x00", "3", "2",
		"\x01\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00", "48", "0",
	}
	checkGolden(t, m, ParseNixlMetadata, frames...)
	checkGolden(t, NixlMetadata{Room: 7, Addr: m.Addr, Agent: "a", Required: 1, Dummy: true}, ParseNixlMetadata,
		"NixlMsgGuard", "7", "10.0.0.2", "7002", "a", "", "0", "1", "", "0", "1")
	checkShortened(t, ParseNixlMetadata, 8, framesOf(frames...))
	checkRefusals(t, ParseNixlMetadata,
		refusal{frames[1:], ErrUnknownType},
		refusal{append(append([]string(nil), frames[:10]...), "2"), ErrRange},
		refusal{append(append([]string(nil), frames[:10]...), "1"), ErrRange}, // a dummy with pages
	)
}

func FuzzNixlMetadata(f *testing.F) {
	seed(f, framesOf("NixlMsgGuard", "7", "h", "1", "a", "\x03\x00\x00\x00", "3", "2", "", "48", "0"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNixlMetadata, in) })
}
