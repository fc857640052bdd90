package wire

import (
	"testing"
)

func TestMoriMetadata(t *testing.T) {
	m := MoriMetadata{7, Addr{"10.0.0.2", 7002}, "key", []int32{3, 9}, 3, [][]int32{{1}}, 2, 48, false}
	frames := []string{
		"MoriMsgGuard", "7", "10.0.0.2", "7002", "key", "\x03\x00\x00\x00\x09\x00\x00\x00", "3",
		"\x01\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00", "2", "48",
	}
	checkGolden(t, m, ParseMoriMetadata, frames...)
	checkGolden(t, MoriMetadata{Room: 7, Addr: m.Addr, EngineKey: "k", Aux: -1, Required: 1, Dummy: true}, ParseMoriMetadata,
		"MoriMsgGuard", "7", "10.0.0.2", "7002", "k", "", "", "", "1", "")
	checkShortened(t, ParseMoriMetadata, 7, framesOf(frames...))
	checkRefusals(t, ParseMoriMetadata,
		refusal{frames[1:], ErrUnknownType},
		refusal{append(append([]string(nil), frames[:8]...), ""), ErrRange}, // told, but empty
	)
}

func FuzzMoriMetadata(f *testing.F) {
	seed(f, framesOf("MoriMsgGuard", "7", "h", "1", "k", "\x03\x00\x00\x00", "3", "", "2", "48"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseMoriMetadata, in) })
}
