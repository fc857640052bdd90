package wire

import (
	"errors"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
	"github.com/kvferry/kvferry/room"
)

var (
	pythonNumber = regexp.MustCompile(`^\s*[+-]?[0-9]+(_[0-9]+)*\s*$`)
	plainNumber  = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	onlyDigits   = regexp.MustCompile(`^[0-9]+$`)
)

// Refused although SGLang takes them: statuses that do not exist, negative ranks, rooms outside of [0, 2^63), and numbers in Python's
// liberal reading; leading zeros alone are taken. Reasons are cleaned of control characters.
func TestParseStatusVector(t *testing.T) {
	type parsed struct {
		Room   string  `json:"room"`
		Status int     `json:"status"`
		Rank   int     `json:"rank"`
		Reason *string `json:"reason"`
	}
	type row struct {
		Backend      string    `json:"backend"`
		Frames       hexFrames `json:"frames"`
		Parsed       *parsed   `json:"parsed"`
		PythonNumber bool      `json:"python_number"`
		Raised       *string   `json:"raised"`
	}
	taken, refused := 0, 0
	vectors.Each(t, "parse_status", func(t testing.TB, line int, v row) {
		got, numbers, err := parseStatusOf(t, v.Backend, v.Frames)
		if v.Raised != nil {
			t.Errorf("line %d: raised %q, but this reader of SGLang's lets nothing escape", line, *v.Raised)
		}
		liberal := false
		for _, f := range v.Frames {
			liberal = liberal || (pythonNumber.Match(f) && !plainNumber.Match(f))
		}
		if liberal != v.PythonNumber {
			t.Errorf("line %d: python_number is %v for %q", line, v.PythonNumber, v.Frames)
		}
		if v.Parsed == nil {
			if !isRefusal(err) {
				t.Errorf("line %d: SGLang drops %q, we read %+v, %v", line, v.Frames, got, err)
			}
			return
		}
		id, ok := roomOf(t, v.Parsed.Room)
		for _, f := range numbers {
			ok = ok && onlyDigits.Match(f)
		}
		if !ok || !room.Status(v.Parsed.Status).Valid() || v.Parsed.Rank < 0 {
			reading := strings.Join([]string{v.Parsed.Room, strconv.Itoa(v.Parsed.Status), strconv.Itoa(v.Parsed.Rank)}, " ")
			if python := pythonInts(numbers); python != reading {
				t.Errorf("line %d: %q is %q in Python, parsed as %q", line, v.Frames, python, reading)
			}
			if v.Parsed.Reason != nil {
				t.Errorf("line %d: reason %q", line, *v.Parsed.Reason)
			}
			if refused++; !errors.Is(err, ErrRange) {
				t.Errorf("line %d: %q should be refused, we read %+v, %v", line, v.Frames, got, err)
			}
			return
		}
		taken++
		want := MooncakeStatus{id, room.Status(v.Parsed.Status), v.Parsed.Rank, room.CleanText(deref(v.Parsed.Reason))}
		if v.Parsed.Reason != nil && *v.Parsed.Reason == "" {
			t.Errorf("line %d: an empty reason, where SGLang has none", line)
		}
		if err != nil || got != want {
			t.Errorf("line %d: %q\n got %+v, %v\nwant %+v", line, v.Frames, got, err, want)
		}
	})
	t.Logf("%d read as SGLang reads them, %d refused although SGLang takes them", taken, refused)
}

// pythonInts is how Python reads and prints numbers.
func pythonInts(frames [][]byte) string {
	var texts []string
	for _, f := range frames {
		n, ok := new(big.Int).SetString(strings.ReplaceAll(strings.TrimSpace(string(f)), "_", ""), 10)
		if !ok {
			return "no number"
		}
		texts = append(texts, n.String())
	}
	return strings.Join(texts, " ")
}

// parseStatusOf also gives the frames with numbers in them.
func parseStatusOf(t testing.TB, backend string, frames [][]byte) (m MooncakeStatus, numbers [][]byte, err error) {
	first := 1
	switch backend {
	case "mooncake":
		m, err = ParseMooncakeStatus(frames)
		first = 0
	case "nixl":
		var n NixlStatus
		n, err = ParseNixlStatus(frames)
		m = MooncakeStatus(n)
	case "mori":
		var n MoriStatus
		n, err = ParseMoriStatus(frames)
		m = MooncakeStatus(n)
	default:
		t.Fatalf("unknown backend %q", backend)
	}
	return m, frames[min(first, len(frames)):min(first+3, len(frames))], err
}
