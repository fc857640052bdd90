package llm

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// golden is a text and what the tokenizers package makes of it with the vocabulary of each model.
type golden struct {
	Text      string
	Gopherdoc []int32
	SmolLM2   []int32
}

func goldenTokens(t testing.TB) []golden {
	f, err := os.Open("testdata/tokens.json")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var file struct {
		Source string
		Rows   []golden
	}
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	if len(file.Rows) == 0 {
		t.Fatal("no rows")
	}
	return file.Rows
}

func bundledTokenizer(t testing.TB) *Tokenizer {
	m, err := openBytes(bundledBytes(t))
	if err != nil {
		t.Fatal(err)
	}
	return m.Tokenizer()
}

func TestGoldenTokens(t *testing.T) {
	tok := bundledTokenizer(t)
	rows := goldenTokens(t)
	for _, g := range rows {
		want := append([]int32{0}, g.Gopherdoc...) // the model wants its beginning-of-text token
		if got := tok.Encode(g.Text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", g.Text, got, want)
		}
		if got := tok.Decode(want); got != g.Text {
			t.Errorf("%q comes back as %q", g.Text, got)
		}
	}
	t.Logf("%d texts", len(rows))
}

func TestPieces(t *testing.T) {
	for in, want := range map[string][]string{
		"Hello world's  end\n\n x1 22!?": {"Hello", " world", "'s", " ", " end", "\n\n", " x", "1", " 22", "!?"},
		" é✓":                            {" é", "✓"},
		"   ":                            {"   "},
		"a\n":                            {"a", "\n"},
	} {
		var got []string
		for s := in; len(s) > 0; {
			n := piece(s)
			got = append(got, s[:n])
			s = s[n:]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// A long piece is merged as the definition says: repeatedly the pair of the lowest rank, the leftmost of equals.
func TestMergeOrder(t *testing.T) {
	tok := bundledTokenizer(t)
	slow := func(s string) []int32 {
		w := make([]int32, len(s))
		for i := range len(s) {
			w[i] = tok.byteIDs[s[i]]
		}
		for {
			best, at := merge{rank: -1}, 0
			for i := range len(w) - 1 {
				if m, ok := tok.ranks[[2]int32{w[i], w[i+1]}]; ok && (best.rank < 0 || m.rank < best.rank) {
					best, at = m, i
				}
			}
			if best.rank < 0 {
				return w
			}
			w[at] = best.id
			w = slices.Delete(w, at+1, at+2)
		}
	}
	for _, s := range []string{"a", "aa", "eeeee", strings.Repeat("erinthe", 60), strings.Repeat(" ", 333), strings.Repeat("ononion", 71) + "s"} {
		if got, want := tok.bpe(nil, s), slow(s); !slices.Equal(got, want) {
			t.Errorf("%.20q (%d bytes): %v, want %v", s, len(s), got, want)
		}
	}
}

// A stream shows whole characters only, each as soon as its last byte is there.
func TestDecoderStreams(t *testing.T) {
	tok := bundledTokenizer(t)
	d := tok.NewDecoder()
	var got []string
	for _, b := range []byte("é✓\xf0\x9f\x91\x8d\xff!\xe2\x9c") {
		got = append(got, d.Next(tok.byteIDs[b]))
	}
	got = append(got, d.Flush(), d.Flush())
	if want := []string{"", "é", "", "", "✓", "", "", "", "👍", "\uFFFD", "!", "", "", "\uFFFD", ""}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, id := range []int32{-1, 0, 1 << 30} { // not a token, a control token
		if s := d.Next(id); s != "" {
			t.Errorf("token %d is %q", id, s)
		}
	}
}

func TestChatWithoutTemplate(t *testing.T) {
	tok := bundledTokenizer(t)
	got := tok.EncodeChat([]Message{{"system", "Be brief."}, {"user", "<|endoftext|>?"}})
	if want := tok.Encode("Be brief.\n\n<|endoftext|>?"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if slices.Contains(got[1:], tok.EOS()) {
		t.Error("text of a message became a control token")
	}
}

func FuzzTokenizer(f *testing.F) {
	tok := bundledTokenizer(f)
	for _, g := range goldenTokens(f) {
		f.Add(g.Text)
	}
	f.Add("\xff\xfe")
	f.Add(strings.Repeat("x", 2000))
	f.Fuzz(func(t *testing.T, s string) {
		ids := tok.Encode(s)
		if got := tok.Decode(ids); got != strings.ToValidUTF8(s, "\uFFFD") && utf8.ValidString(s) {
			t.Fatalf("%q became %q", s, got)
		}
		d := tok.NewDecoder()
		var whole strings.Builder
		for _, id := range ids {
			part := d.Next(id)
			if !utf8.ValidString(part) {
				t.Fatalf("%q: streamed %q", s, part)
			}
			whole.WriteString(part)
		}
		if whole.WriteString(d.Flush()); utf8.ValidString(s) && whole.String() != s {
			t.Fatalf("%q streamed as %q", s, whole.String())
		}
	})
}
