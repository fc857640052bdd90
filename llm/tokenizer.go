package llm

import (
	"container/heap"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Tokenizer is a byte-level BPE: GGUF's kind "gpt2", with the pre-tokenizers "gpt-2" and "smollm". It may be used by any number of goroutines.
type Tokenizer struct {
	bytesOf  []string // by token: its bytes
	ids      map[string]int32
	ranks    map[[2]int32]merge // pair → its merge
	special  map[string]int32   // control tokens by their text
	control  []bool
	bos, eos int32
	addBOS   bool
	digits   bool // digits stand alone
	chatml   bool
	byteIDs  [256]int32 // -1: the vocabulary lacks that byte
}

type merge struct {
	rank int
	id   int32
}

// Token types of GGUF.
const (
	tokenControl     = 3
	tokenUserDefined = 4
)

// byteRunes is GPT-2's table of the characters that stand for bytes in a vocabulary.
func byteRunes() (table [256]rune) {
	n := rune(0)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			table[b] = rune(b)
			continue
		}
		table[b] = 256 + n
		n++
	}
	return table
}

// unmap is the bytes that a text of the vocabulary stands for.
func unmap(back map[rune]byte, text string) (string, bool) {
	b := make([]byte, 0, len(text))
	for _, r := range text {
		c, ok := back[r]
		if !ok {
			return "", false
		}
		b = append(b, c)
	}
	return string(b), true
}

func newTokenizer(g *gguf, vocab int) (*Tokenizer, error) {
	if kind, _ := g.meta["tokenizer.ggml.model"].(string); kind != "gpt2" {
		return nil, fmt.Errorf("%w: tokenizer %q, want \"gpt2\"", ErrUnsupported, kind)
	}
	t := &Tokenizer{ids: make(map[string]int32, vocab), ranks: map[[2]int32]merge{}, special: map[string]int32{}, control: make([]bool, vocab)}
	switch pre, _ := g.meta["tokenizer.ggml.pre"].(string); pre {
	case "gpt-2", "", "default":
	case "smollm":
		t.digits = true
	default:
		return nil, fmt.Errorf("%w: pre-tokenizer %q, want \"gpt-2\" or \"smollm\"", ErrUnsupported, pre)
	}
	back := map[rune]byte{}
	for b, r := range byteRunes() {
		back[r] = byte(b)
	}
	types, _ := g.meta["tokenizer.ggml.token_type"].([]any)
	tokens, _ := g.meta["tokenizer.ggml.tokens"].([]string)
	for id, text := range tokens {
		kind := int64(1)
		if id < len(types) {
			kind, _ = types[id].(int64)
		}
		if kind == tokenControl || kind == tokenUserDefined {
			t.special[text] = int32(id)
			t.control[id] = kind == tokenControl
			t.bytesOf = append(t.bytesOf, text)
			continue
		}
		b, ok := unmap(back, text)
		if !ok {
			return nil, fmt.Errorf("%w: token %d, %q, has a character that stands for no byte", ErrFormat, id, text)
		}
		t.bytesOf = append(t.bytesOf, b)
		t.ids[b] = int32(id)
	}
	for b := range 256 {
		t.byteIDs[b] = -1
		if id, ok := t.ids[string([]byte{byte(b)})]; ok {
			t.byteIDs[b] = id
		}
	}
	return t, t.readRest(g, back, vocab)
}

func (t *Tokenizer) readRest(g *gguf, back map[rune]byte, vocab int) error {
	merges, _ := g.meta["tokenizer.ggml.merges"].([]string)
	for rank, m := range merges {
		left, right, _ := strings.Cut(m, " ")
		a, okA := unmap(back, left)
		b, okB := unmap(back, right)
		x, hasA := t.ids[a]
		y, hasB := t.ids[b]
		z, hasC := t.ids[a+b]
		if !okA || !okB || !hasA || !hasB || !hasC {
			return fmt.Errorf("%w: merge %d, %q, is not of the vocabulary", ErrFormat, rank, m)
		}
		if _, twice := t.ranks[[2]int32{x, y}]; !twice {
			t.ranks[[2]int32{x, y}] = merge{rank, z}
		}
	}
	for _, f := range []struct {
		key string
		dst *int32
	}{{"tokenizer.ggml.bos_token_id", &t.bos}, {"tokenizer.ggml.eos_token_id", &t.eos}} {
		id, err := g.uint(f.key, 0, true)
		if err != nil {
			return err
		}
		if id >= vocab {
			return fmt.Errorf("%w: key %q is %d, the vocabulary has %d tokens", ErrFormat, f.key, id, vocab)
		}
		*f.dst = int32(id)
	}
	t.addBOS, _ = g.meta["tokenizer.ggml.add_bos_token"].(bool)
	template, _ := g.meta["tokenizer.chat_template"].(string)
	t.chatml = strings.Contains(template, "<|im_start|>")
	return nil
}

// EOS is the token that ends a text.
func (t *Tokenizer) EOS() int32 { return t.eos }

// Encode tokenises text, with the leading token that the model wants. Text that looks like a control token is text. A byte that the
// vocabulary lacks (SmolLM2's lacks some control characters and lead bytes) has no token and is left out, as the model's own
// tokenizer does.
func (t *Tokenizer) Encode(text string) []int32 {
	var ids []int32
	if t.addBOS {
		ids = append(ids, t.bos)
	}
	return t.encode(ids, text)
}

func (t *Tokenizer) encode(ids []int32, text string) []int32 {
	for len(text) > 0 {
		seg := text[:t.segment(text)]
		text = text[len(seg):]
		for len(seg) > 0 {
			n := piece(seg)
			ids = t.bpe(ids, seg[:n])
			seg = seg[n:]
		}
	}
	return ids
}

// segment is the length of the text that is cut into pieces by itself: all of it, or where digits stand alone one digit or what is before the
// next.
func (t *Tokenizer) segment(s string) int {
	if !t.digits {
		return len(s)
	}
	at := strings.IndexFunc(s, unicode.IsNumber)
	switch at {
	case -1:
		return len(s)
	case 0:
		_, n := utf8.DecodeRuneInString(s)
		return n
	}
	return at
}

// part is a token of a piece that is being merged, in a list that is doubly linked by index; -1 ends it. A part that was merged into the one
// before it has id -1.
type part struct {
	id         int32
	prev, next int
}

// candidate is a pair that can be merged: parts at and next, which were left and right when it was found.
type candidate struct {
	merge
	at          int
	left, right int32
}

// candidates is a heap: lowest rank first, the leftmost of equals.
type candidates []candidate

func (c candidates) Len() int      { return len(c) }
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(x any)   { *c = append(*c, x.(candidate)) }
func (c candidates) Less(i, j int) bool {
	return c[i].rank < c[j].rank || c[i].rank == c[j].rank && c[i].at < c[j].at
}

func (c *candidates) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// bpe merges a piece's bytes, the pair of the lowest rank first, the leftmost of equals, in n log n for n bytes.
func (t *Tokenizer) bpe(ids []int32, piece string) []int32 {
	parts := make([]part, 0, len(piece))
	for i := range len(piece) {
		if id := t.byteIDs[piece[i]]; id >= 0 {
			parts = append(parts, part{id, len(parts) - 1, len(parts) + 1})
		}
	}
	if len(parts) == 0 {
		return ids
	}
	parts[len(parts)-1].next = -1
	var pairs candidates
	find := func(at int) (candidate, bool) {
		if at < 0 || parts[at].next < 0 {
			return candidate{}, false
		}
		left, right := parts[at].id, parts[parts[at].next].id
		m, ok := t.ranks[[2]int32{left, right}]
		return candidate{m, at, left, right}, ok
	}
	for i := range parts {
		if c, ok := find(i); ok {
			pairs = append(pairs, c)
		}
	}
	heap.Init(&pairs)
	for len(pairs) > 0 {
		c := heap.Pop(&pairs).(candidate)
		p := &parts[c.at]
		if p.id != c.left || p.next < 0 || parts[p.next].id != c.right {
			continue // one of the two has changed since
		}
		gone := &parts[p.next]
		p.id, p.next, gone.id = c.id, gone.next, -1
		if p.next >= 0 {
			parts[p.next].prev = c.at
		}
		for _, at := range []int{p.prev, c.at} {
			if n, ok := find(at); ok {
				heap.Push(&pairs, n)
			}
		}
	}
	for i := 0; i >= 0; i = parts[i].next {
		ids = append(ids, parts[i].id)
	}
	return ids
}

// piece is the length of the first piece of text by GPT-2's rule:
// 's|'t|'re|'ve|'m|'ll|'d| ?letters| ?numbers| ?others|white space but its last|white space.
func piece(s string) int {
	for _, c := range []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
		if strings.HasPrefix(s, c) {
			return len(c)
		}
	}
	at := 0
	if s[0] == ' ' && len(s) > 1 {
		at = 1
	}
	r, _ := utf8.DecodeRuneInString(s[at:])
	if k := kindOf(r); k != space {
		return at + run(s[at:], k)
	}
	n := run(s, space)
	if n < len(s) { // the last space belongs to the word behind it
		_, last := utf8.DecodeLastRuneInString(s[:n])
		if n > last {
			n -= last
		}
	}
	return n
}

type kind uint8

const (
	letter kind = iota
	number
	space
	other
)

func kindOf(r rune) kind {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	}
	return other
}

func run(s string, k kind) int {
	n := 0
	for n < len(s) {
		r, size := utf8.DecodeRuneInString(s[n:])
		if kindOf(r) != k {
			break
		}
		n += size
	}
	return n
}

// Decode is the text of tokens, control tokens left out; bytes that are no UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []int32) string {
	d := t.NewDecoder()
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(d.Next(id))
	}
	b.WriteString(d.Flush())
	return b.String()
}

// Decoder turns a stream of tokens into text as it comes, whole characters only. It is for one goroutine.
type Decoder struct {
	t    *Tokenizer
	rest []byte
}

// NewDecoder makes a decoder.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Next returns the text that token id completes.
func (d *Decoder) Next(id int32) string {
	if id < 0 || int(id) >= len(d.t.bytesOf) || d.t.control[id] {
		return ""
	}
	d.rest = append(d.rest, d.t.bytesOf[id]...)
	n := len(d.rest)
	for back := 1; back <= min(3, n); back++ { // an unfinished character has at most three bytes
		if c := d.rest[n-back]; utf8.RuneStart(c) {
			if !utf8.FullRune(d.rest[n-back:]) {
				n -= back
			}
			break
		}
	}
	text := strings.ToValidUTF8(string(d.rest[:n]), "\uFFFD")
	d.rest = append(d.rest[:0], d.rest[n:]...)
	return text
}

// Flush returns what is left, an unfinished character as U+FFFD.
func (d *Decoder) Flush() string {
	text := strings.ToValidUTF8(string(d.rest), "\uFFFD")
	d.rest = d.rest[:0]
	return text
}

// Message is one turn of a chat.
type Message struct{ Role, Content string }

// EncodeChat tokenises a chat up to the point where the assistant's answer begins: in ChatML where the model's template has it, which is the
// one template that is recognised; else as the contents, a blank line behind each.
func (t *Tokenizer) EncodeChat(messages []Message) []int32 {
	start, ok1 := t.special["<|im_start|>"]
	end, ok2 := t.special["<|im_end|>"]
	if !t.chatml || !ok1 || !ok2 {
		var b strings.Builder
		for i, m := range messages {
			if i > 0 {
				b.WriteString("\n\n")
			}
			b.WriteString(m.Content)
		}
		return t.Encode(b.String())
	}
	var ids []int32
	for _, m := range messages {
		ids = t.encode(append(ids, start), m.Role+"\n"+m.Content)
		ids = t.encode(append(ids, end), "\n")
	}
	return t.encode(append(ids, start), "assistant\n")
}
