package wire

import (
	"testing"
)

func sampleNixlRegistration() NixlRegistration {
	return NixlRegistration{
		Addr: Addr{"h", 1}, Agent: "a", AgentMetadata: []byte{0, 255}, KVPointers: []uint64{1, 2}, TPSize: 1, KVItemLen: 8, DCPSize: 1,
		MemKinds: []MemKind{DRAM, VRAM}, KVItemLens: []uint64{8, 8}, Slots: 10,
	}
}

func TestNixlRegistration(t *testing.T) {
	const two = "\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"
	const lens = "\x08\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00"
	frames := []string{
		"NixlMsgGuard", "None", "h", "1", "a", "\x00\xff", two, "", "", "0", "1", "0", "8", "", "", "", "", "10", "DRAM,VRAM", lens, "", "",
		"1", "0", "",
	}
	checkGolden(t, sampleNixlRegistration(), ParseNixlRegistration, frames...)
	checkShortened(t, ParseNixlRegistration, 13, framesOf(frames...))
	kinds := func(s string) []string {
		return append(append(append([]string(nil), frames[:18]...), s), frames[19:]...)
	}
	checkRefusals(t, ParseNixlRegistration,
		refusal{frames[1:], ErrUnknownType},
		refusal{kinds("DRAM"), ErrRange},
		refusal{kinds("DRAM,"), ErrRange},
		refusal{kinds("DRAM,VRAM,VRAM"), ErrRange},
	)
}

func FuzzNixlRegistration(f *testing.F) {
	seed(f, sampleNixlRegistration().AppendFrames(nil))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseNixlRegistration, in) })
}
