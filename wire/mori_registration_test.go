package wire

import (
	"reflect"
	"testing"
)

func sampleMoriRegistration() MoriRegistration {
	return MoriRegistration{
		Addr: Addr{"h", 1}, Engine: []byte("engine"), KVDescs: [][]byte{[]byte("kv0"), {}}, AuxDescs: [][]byte{[]byte("aux")},
		StateDescs: [][][]byte{{[]byte("s0"), nil}, nil}, TPSize: 1, KVItemLen: 8, DCPSize: 1,
	}
}

func TestMoriRegistration(t *testing.T) {
	frames := []string{
		"MoriMsgGuard", "None", "h", "1", "engine", "\x92\xc4\x03kv0\xc4\x00", "\x91\xc4\x03aux", "\x92\x92\xc4\x02s0\xc0\x90",
		"0", "1", "0", "8", "", "", "1", "0", "", "",
	}
	checkGolden(t, sampleMoriRegistration(), ParseMoriRegistration, frames...)
	checkShortened(t, ParseMoriRegistration, 12, framesOf(frames...))
	with := func(i int, s string) []string {
		return append(append(append([]string(nil), frames[:i]...), s), frames[i+1:]...)
	}
	checkRefusals(t, ParseMoriRegistration,
		refusal{frames[1:], ErrUnknownType},
		refusal{with(5, "\xdd\xff\xff\xff\xff"), ErrRange},
		refusal{with(5, "\xdc\x0f\xff"), ErrTruncated},
		refusal{with(5, "\xdc\x00"), ErrTruncated},
		refusal{with(5, "\x91\xc6\xff\xff\xff\xff"), ErrRange},
		refusal{with(5, "\x91\xc4\x05kv"), ErrTruncated},
		refusal{with(5, "\x91\xc0"), ErrRange}, // nil stands in states alone
		refusal{with(5, "\x91\xa3kv0"), ErrRange},
		refusal{with(5, "\x80"), ErrRange},
		refusal{with(5, "\x90\x00"), ErrRange},
		refusal{with(7, "\x91\xc4\x00"), ErrRange},
	)
}

// Lengths on both sides of each border of msgpack's forms.
func TestMoriRegistrationForms(t *testing.T) {
	for _, n := range []int{15, 16, 255, 256, MaxPointers} {
		m := sampleMoriRegistration()
		m.KVDescs = make([][]byte, n)
		for i := range m.KVDescs {
			m.KVDescs[i] = make([]byte, 0)
		}
		m.KVDescs[0] = make([]byte, min(n, MaxBlob))
		m.AuxDescs = [][]byte{make([]byte, MaxBlob-1), make([]byte, MaxBlob)}
		got, err := ParseMoriRegistration(m.AppendFrames(nil))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%d descriptors: %v", n, err)
		}
	}
}

func FuzzMoriRegistration(f *testing.F) {
	seed(f, sampleMoriRegistration().AppendFrames(nil))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseMoriRegistration, in) })
}
