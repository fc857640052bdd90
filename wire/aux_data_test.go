package wire

import (
	"strings"
	"testing"
)

func TestAuxData(t *testing.T) {
	checkGolden(t, AuxData{7, 2, 5, []byte("abcd")}, ParseAuxData, "AUX_DATA", "7", "2", "5", "\x00\x00\x00\x04", "abcd")
	checkGolden(t, AuxData{7, 0, 0, make([]byte, 0x102)}, ParseAuxData, "AUX_DATA", "7", "0", "0", "\x00\x00\x01\x02",
		strings.Repeat("\x00", 0x102))
	checkShortened(t, ParseAuxData, 6, framesOf("AUX_DATA", "7", "2", "5", "\x00\x00\x00\x00", ""))
	checkRefusals(t, ParseAuxData,
		refusal{[]string{"AUX", "7", "2", "5", "\x00\x00\x00\x00", ""}, ErrUnknownType},
		refusal{[]string{"AUX_DATA", "7", "2", "5", "\x00\x00\x00", ""}, ErrTruncated},
		refusal{[]string{"AUX_DATA", "7", "2", "5", "\x00\x00\x00\x04", "abc"}, ErrTruncated},
		refusal{[]string{"AUX_DATA", "7", "2", "5", "\x04\x00\x00\x00", "abcd"}, ErrRange}, // little endian
		refusal{[]string{"AUX_DATA", "7", "2", "5", "\x00\x00\x00\x04", "abcde"}, ErrRange},
		refusal{[]string{"AUX_DATA", "7", "-2", "5", "\x00\x00\x00\x00", ""}, ErrRange},
	)
}

// The bytes are handed over as they are, in both directions.
func TestAuxDataIsNotCopied(t *testing.T) {
	frames := AuxData{Data: []byte("abcd")}.AppendFrames(nil)
	m, err := ParseAuxData(frames)
	if err != nil || &m.Data[0] != &frames[5][0] {
		t.Errorf("%v, %v", m, err)
	}
}

func FuzzAuxData(f *testing.F) {
	seed(f, framesOf("AUX_DATA", "7", "2", "5", "\x00\x00\x00\x04", "abcd"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseAuxData, in) })
}
