package room

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// Every state × report pair, written out: the rule's table, not the rule again.
func TestNextEveryPair(t *testing.T) {
	all := []Status{Absent, Failed, Bootstrapping, WaitingForInput, Transferring, Success}
	want := map[Status][6]Status{ // columns: reported Absent, Failed, Bootstrapping, WaitingForInput, Transferring, Success
		Absent:          {Absent, Absent, Bootstrapping, WaitingForInput, Absent, Absent},
		Failed:          {Failed, Failed, Failed, Failed, Failed, Failed},
		Bootstrapping:   {Bootstrapping, Failed, Bootstrapping, WaitingForInput, Transferring, Success},
		WaitingForInput: {WaitingForInput, Failed, WaitingForInput, WaitingForInput, Transferring, Success},
		Transferring:    {Transferring, Failed, Transferring, Transferring, Transferring, Success},
		Success:         {Success, Failed, Success, Success, Success, Success},
	}
	for _, cur := range all {
		for i, rep := range all {
			if got := Next(cur, rep); got != want[cur][i] {
				t.Errorf("Next(%v, %v) = %v, want %v", cur, rep, got, want[cur][i])
			}
		}
		for _, rep := range []Status{5, 127, -128} {
			if got := Next(cur, rep); got != cur {
				t.Errorf("Next(%v, %v) = %v, want no change", cur, rep, got)
			}
		}
	}
}

func TestParseID(t *testing.T) {
	for text, want := range map[string]ID{"0": 0, "7": 7, "007": 7, "9007199254740993": 1<<53 + 1, "9223372036854775807": MaxID} {
		got, err := ParseID(text)
		if err != nil || got != want {
			t.Errorf("ParseID(%q) = %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "+1", " 1", "1 ", "1_0", "1.0", "1e3", "0x10", "9223372036854775808", "18446744073709551616", "99999999999999999999", "é", strings.Repeat("1", 1<<20)} {
		if got, err := ParseID(text); !errors.Is(err, ErrInvalidID) {
			t.Errorf("ParseID(%.30q) = %d, %v, want ErrInvalidID", text, got, err)
		}
	}
}

func TestIDJSONIsExact(t *testing.T) {
	var v struct{ Room ID }
	if err := json.Unmarshal([]byte(`{"Room":9223372036854775807}`), &v); err != nil || v.Room != MaxID {
		t.Fatalf("%v, %v", v, err)
	}
	b, err := json.Marshal(v)
	if err != nil || string(b) != `{"Room":9223372036854775807}` {
		t.Fatalf("%s, %v", b, err)
	}
	for _, bad := range []string{`{"Room":1.0}`, `{"Room":1e3}`, `{"Room":"1"}`, `{"Room":-1}`, `{"Room":9223372036854775808}`} {
		if err := json.Unmarshal([]byte(bad), &v); !errors.Is(err, ErrInvalidID) {
			t.Errorf("%s: %v, want ErrInvalidID", bad, err)
		}
	}
}

func TestInstanceID(t *testing.T) {
	id := InstanceID{0: 0xab, 15: 0x01}
	got, err := ParseInstanceID(id.String())
	if err != nil || got != id {
		t.Fatalf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "ab", strings.Repeat("g", 32), strings.Repeat("a", 33)} {
		if _, err := ParseInstanceID(bad); !errors.Is(err, ErrInvalidInstance) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCodeTable(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Codes() {
		label := c.String()
		if label == "" || seen[label] || c.Sentence() == "" || c.HTTPStatus() < 400 || c.ExitCode() == 0 || c.Class() == 0 {
			t.Errorf("code %d: incomplete or repeated row %q", c, label)
		}
		seen[label] = true
		if back, ok := ParseCode(label); !ok || back != c {
			t.Errorf("ParseCode(%q) = %v, %v", label, back, ok)
		}
	}
	if _, ok := ParseCode("none"); ok || Code(0).Valid() || Code(200).Valid() {
		t.Error("a code outside the set is accepted")
	}
	if Code(200).String() != "internal" {
		t.Error("an unknown code does not count as internal")
	}
}

func TestCause(t *testing.T) {
	c := Causef(PeerDead, Decode, "10.0.0.7:9", "room %d", 7)
	c.Rank = 3
	if got, want := c.Error(), "the other side is gone (decode rank 3, peer 10.0.0.7:9): room 7"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	err := fmt.Errorf("wait: %w", c)
	if !errors.Is(err, Cause{Code: PeerDead}) || errors.Is(err, Cause{Code: Aborted}) {
		t.Error("errors.Is does not go by the code")
	}
	if !(Cause{}).IsZero() || c.IsZero() {
		t.Error("IsZero")
	}
}

func FuzzCleanText(f *testing.F) {
	f.Add("plain")
	f.Add("\xff\xfe\x00line\n")
	f.Add(strings.Repeat("é", MaxCauseText))
	f.Fuzz(func(t *testing.T, in string) {
		out := CleanText(in)
		if len(out) > MaxCauseText || !utf8.ValidString(out) || strings.ContainsAny(out, "\n\r\x00") {
			t.Fatalf("CleanText(%q) = %q", in, out)
		}
		if CleanText(out) != out {
			t.Fatalf("CleanText is not idempotent on %q", out)
		}
	})
}

func FuzzParseID(f *testing.F) {
	f.Add("9223372036854775807")
	f.Add("-1")
	f.Fuzz(func(t *testing.T, in string) {
		id, err := ParseID(in)
		if err != nil {
			return
		}
		back, err := ParseID(id.String())
		if err != nil || back != id || id > MaxID {
			t.Fatalf("%q → %d → %d, %v", in, id, back, err)
		}
	})
}
