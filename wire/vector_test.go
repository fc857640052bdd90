package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
	"github.com/kvferry/kvferry/room"
)

// hexFrames are frames as the tables hold them: hexadecimal texts, or null for none.
type hexFrames [][]byte

func (f *hexFrames) UnmarshalJSON(b []byte) error {
	var texts []string
	if err := json.Unmarshal(b, &texts); err != nil || texts == nil {
		*f = nil
		return err
	}
	*f = make(hexFrames, len(texts))
	for i, s := range texts {
		b, err := hex.DecodeString(s)
		if err != nil {
			return err
		}
		(*f)[i] = b
	}
	return nil
}

func sameFrames(a, b [][]byte) bool { return slices.Equal(textsOf(a), textsOf(b)) }

func isRefusal(err error) bool {
	return errors.Is(err, ErrTruncated) || errors.Is(err, ErrUnknownType) || errors.Is(err, ErrRange)
}

// roomOf reads a room of a table; not ok: a number that kvferry refuses, negative or beyond 2^63-1.
func roomOf(t testing.TB, text string) (room.ID, bool) {
	id, err := room.ParseID(text)
	if err != nil {
		rest := text
		if rest != "" && rest[0] == '-' {
			rest = rest[1:]
		}
		for _, c := range rest {
			if c < '0' || c > '9' {
				t.Fatalf("room %q of the table is no number", text)
			}
		}
	}
	return id, err == nil
}

// num is an integer of a table, which stands as text where it is large.
type num uint64

func (n *num) UnmarshalJSON(b []byte) error {
	s := string(b)
	if len(s) > 1 && s[0] == '"' {
		s = s[1 : len(s)-1]
	}
	v, err := strconv.ParseUint(s, 10, 64)
	*n = num(v)
	return err
}

// inum is num for lists with signed integers.
type inum int64

func (n *inum) UnmarshalJSON(b []byte) error {
	s := string(b)
	if len(s) > 1 && s[0] == '"' {
		s = s[1 : len(s)-1]
	}
	v, err := strconv.ParseInt(s, 10, 64)
	*n = inum(v)
	return err
}

// nums turns a list of a table into a list of ours; empty is nil.
func nums[T number, S ~uint64 | ~int64](in []S) []T {
	if len(in) == 0 {
		return nil
	}
	out := make([]T, len(in))
	for i, v := range in {
		out[i] = T(v)
	}
	return out
}

func numLists[T number, S ~uint64 | ~int64](in [][]S) [][]T {
	if len(in) == 0 {
		return nil
	}
	out := make([][]T, len(in))
	for i, l := range in {
		out[i] = nums[T](l)
	}
	return out
}

// with is frames with another frame i: rows that kvferry refuses are repaired and read, so that the rest of SGLang's reading is compared too.
func with(frames [][]byte, i int, frame string) [][]byte {
	frames = slices.Clone(frames)
	frames[i] = []byte(frame)
	return frames
}

// stateOf reads packed state indices where our reader does not look at them.
func stateOf(t testing.TB, frames [][]byte, i int) [][]int32 {
	r := newReader("state", frames)
	lists := readLists[int32](&r, i, "state", MaxStateLists, MaxStateEntries)
	if r.err != nil {
		t.Error(r.err)
	}
	return lists
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func TestPackedListsVector(t *testing.T) {
	type row struct {
		Format string            `json:"format"`
		Lists  []json.RawMessage `json:"lists"`
		Packed string            `json:"packed"`
	}
	vectors.Each(t, "packed_lists", func(t testing.TB, line int, v row) {
		switch v.Format {
		case "i":
			checkPacked[int32](t, line, v.Lists, v.Packed)
		case "I":
			checkPacked[uint32](t, line, v.Lists, v.Packed)
		case "Q":
			checkPacked[uint64](t, line, v.Lists, v.Packed)
		default:
			t.Errorf("line %d: format %q", line, v.Format)
		}
	})
}

func listsOf[T number](t testing.TB, raw []json.RawMessage) [][]T {
	if len(raw) == 0 {
		return nil
	}
	lists := make([][]T, len(raw))
	for i, r := range raw {
		var texts []string
		if err := json.Unmarshal(r, &texts); err != nil {
			t.Fatal(err)
		}
		for _, s := range texts {
			n, err := strconv.ParseInt(s, 10, 64)
			if u, uerr := strconv.ParseUint(s, 10, 64); uerr == nil {
				n, err = int64(u), nil
			}
			if err != nil || (width[T]() == 8 && uint64(T(n)) != uint64(n)) || (width[T]() == 4 && int64(T(n)) != n) {
				t.Fatalf("%s doesn't fit: %v", s, err)
			}
			lists[i] = append(lists[i], T(n))
		}
	}
	return lists
}

func checkPacked[T number](t testing.TB, line int, raw []json.RawMessage, packed string) {
	lists := listsOf[T](t, raw)
	if got := hex.EncodeToString(appendLists(nil, lists)); got != packed {
		t.Errorf("line %d: %v packs to %s, want %s", line, lists, got, packed)
	}
	b, err := hex.DecodeString(packed)
	if err != nil {
		t.Fatal(err)
	}
	r := newReader("lists", [][]byte{b})
	if got := readLists[T](&r, 0, "lists", MaxStateLists, MaxPointers); r.err != nil || !reflect.DeepEqual(got, lists) {
		t.Errorf("line %d: %s reads as %v, %v, want %v", line, packed, got, r.err, lists)
	}
}

// SGLang cuts lengths beyond the end silently and ignores bytes after the last list. kvferry refuses both: it takes what SGLang takes only
// where packing the result gives the same bytes, or where it says "no lists" in four bytes.
func TestUnpackListsVector(t *testing.T) {
	type row struct {
		Packed  string             `json:"packed"`
		Buffers *[]string          `json:"buffers"`
		Raised  *string            `json:"raised"`
		I32     *[]json.RawMessage `json:"i"`
		U32     *[]json.RawMessage `json:"I"`
		U64     *[]json.RawMessage `json:"Q"`
		I32Err  *string            `json:"i_raised"`
		U32Err  *string            `json:"I_raised"`
		U64Err  *string            `json:"Q_raised"`
	}
	vectors.Each(t, "unpack_lists", func(t testing.TB, line int, v row) {
		b, err := hex.DecodeString(v.Packed)
		if err != nil {
			t.Fatal(err)
		}
		checkUnpacked[int32](t, line, b, v.I32, v.I32Err)
		checkUnpacked[uint32](t, line, b, v.U32, v.U32Err)
		checkUnpacked[uint64](t, line, b, v.U64, v.U64Err)
		checkBuffers(t, line, b, v.Buffers, v.Raised)
	})
}

func checkUnpacked[T number](t testing.TB, line int, b []byte, lists *[]json.RawMessage, raised *string) {
	if (lists == nil) == (raised == nil) || (raised != nil && *raised != "error") {
		t.Errorf("line %d: lists %v, raised %v: want one of them", line, lists, raised)
		return
	}
	r := newReader("lists", [][]byte{b})
	got := readLists[T](&r, 0, "lists", MaxStateLists, MaxPointers)
	if raised != nil {
		if !isRefusal(r.err) {
			t.Errorf("line %d: SGLang refuses %x, we read %v, %v", line, b, got, r.err)
		}
		return
	}
	want := listsOf[T](t, *lists)
	if exact := string(appendLists(nil, want)) == string(b) || string(b) == "\x00\x00\x00\x00"; !exact {
		if !isRefusal(r.err) {
			t.Errorf("line %d: %x is cut or padded, yet we read %v, %v", line, b, got, r.err)
		}
		// The lists of the table are a reading of the bytes there are: as far as they go, packing gives the bytes back.
		if whole := appendLists(nil, want); len(want) > 0 && !sharesLists(b, whole, len(want)) {
			t.Errorf("line %d: %v is no reading of %x", line, want, b)
		}
		return
	}
	if r.err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("line %d: %x reads as %v, %v, want %v", line, b, got, r.err, want)
	}
}

// sharesLists reports whether the lists of whole, which has n lists, are the ones of b, be that cut or padded.
func sharesLists(b, whole []byte, n int) bool {
	head := 4 + 4*n
	if len(b) < head || string(b[:4]) != string(whole[:4]) {
		return false
	}
	data, rest := whole[head:], b[head:]
	return len(rest) >= len(data) && string(rest[:len(data)]) == string(data)
}

// checkBuffers holds the first level, byte strings, against a reading of bytes as SGLang does it.
func checkBuffers(t testing.TB, line int, b []byte, want *[]string, raised *string) {
	var got []string
	bad := false
	if len(b) > 0 {
		n := 0
		if bad = len(b) < 4; !bad {
			n = int(b[0]) | int(b[1])<<8 | int(b[2])<<16 | int(b[3])<<24
			bad = len(b) < 4+4*n
		}
		for k, at := 0, 4+4*n; !bad && k < n; k++ {
			size := int(b[4+4*k]) | int(b[5+4*k])<<8 | int(b[6+4*k])<<16 | int(b[7+4*k])<<24
			end := min(at+size, len(b))
			got = append(got, hex.EncodeToString(b[min(at, end):end]))
			at = end
		}
	}
	if bad != (raised != nil) || bad == (want != nil) || (raised != nil && *raised != "error") || !slices.Equal(got, deref(want)) {
		t.Errorf("line %d: buffers %q, raised %v; want %q, raised %v", line, got, bad, deref(want), deref(raised))
	}
}
