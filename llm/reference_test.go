package llm

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"math"
	"os"
	"slices"
	"testing"
)

// reference is what an independent computation of a model gives.
type reference struct {
	Prompt []int32
	Logits []float64 // the first of those behind the prompt
	Tokens []int32   // the greedy continuation
}

func references(t *testing.T) (gopherdoc, smollm2 reference) {
	b, err := os.ReadFile("testdata/logits.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Source             string
		Gopherdoc, SmolLM2 reference
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Gopherdoc.Logits) == 0 || len(file.SmolLM2.Logits) == 0 {
		t.Fatal("no logits")
	}
	return file.Gopherdoc, file.SmolLM2
}

// tester makes an instance with memory of its own; rank r has pages+r pages, and its page table lists them backwards.
func tester(t testing.TB, m *Model, geo Geometry, pages int) (*Instance, [][]int32) {
	var memory [][][]byte
	var tables [][]int32
	for r := range geo.Ranks() {
		start, end := Stage(m.cfg.Layers, geo.PP, r/geo.TP)
		var regions [][]byte
		for range 2 * (end - start) {
			regions = append(regions, make([]byte, (pages+r)*geo.ItemLen(m.cfg)))
		}
		var table []int32
		for p := pages + r - 1; p >= 0; p-- {
			table = append(table, int32(p))
		}
		memory, tables = append(memory, regions), append(tables, table)
	}
	in, err := NewInstance(m, geo, memory)
	if err != nil {
		t.Fatal(err)
	}
	return in, tables
}

func one(t testing.TB, in *Instance, ids []int32, pos int, tables [][]int32) []float32 {
	out, err := in.Step(t.Context(), []Seq{{Tokens: ids, Pos: pos, Pages: tables, Logits: true}})
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// agree compares a model with its reference, whose numbers have more bits and sums in another order.
func (ref reference) agree(t *testing.T, m *Model) {
	in, tables := tester(t, m, Geometry{1, 1, 16}, 8)
	logits := one(t, in, ref.Prompt, 0, tables)
	worst := 0.0
	for i, want := range ref.Logits {
		worst = max(worst, math.Abs(float64(logits[i])-want))
	}
	if !(worst < 1e-3) {
		t.Errorf("logits %v, want %v", logits[:len(ref.Logits)], ref.Logits)
	}
	ids := slices.Clone(ref.Prompt)
	for range ref.Tokens {
		ids = append(ids, Sampler{}.Sample(logits, len(ids)))
		logits = one(t, in, ids[len(ids)-1:], len(ids)-1, tables)
	}
	if got := ids[len(ref.Prompt):]; !slices.Equal(got, ref.Tokens) {
		t.Errorf("continues with %v, want %v", got, ref.Tokens)
	}
	t.Logf("logits differ by at most %.1e; text %q", worst, m.tok.Decode(ids[len(ref.Prompt):]))
}

func TestReference(t *testing.T) {
	m, err := openBytes(bundledBytes(t))
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := references(t)
	ref.agree(t, m)
}

// The same bits in every build: with GOAMD64=v1 and with v3, under which the compiler fuses what it may.
func TestBitIdentityOfBuilds(t *testing.T) {
	m, err := openBytes(bundledBytes(t))
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := references(t)
	in, tables := tester(t, m, Geometry{2, 2, 16}, 8)
	h := fnv.New64a()
	for _, v := range one(t, in, ref.Prompt, 0, tables) {
		h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
	}
	if got, want := h.Sum64(), uint64(0x6919832ee4264725); got != want {
		t.Errorf("logits have the hash %#x, want %#x", got, want)
	}
}

// The fixed prompt of the reference is this text, and its continuation is this one.
func TestGreedyText(t *testing.T) {
	tok := bundledTokenizer(t)
	ref, _ := references(t)
	if got := tok.Encode("Package http provides HTTP client and server implementations. The client"); !slices.Equal(got, ref.Prompt) {
		t.Errorf("prompt %v, want %v", got, ref.Prompt)
	}
	if got, want := tok.Decode(ref.Tokens), " is used to implement the HTTP/2 client to send a request with a request"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// smollm2 is SmolLM2-135M-Instruct, Q4_1: three KV heads for nine heads, another pre-tokenizer and a chat template.
func smollm2(t *testing.T) *Model {
	path := os.Getenv("KVFERRY_SMOLLM2")
	if path == "" {
		t.Skip("KVFERRY_SMOLLM2 names no file: `make smollm2` fetches the model and runs this test")
	}
	m, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSmolLM2(t *testing.T) {
	m := smollm2(t)
	for _, g := range goldenTokens(t) {
		if got := m.tok.Encode(g.Text); !slices.Equal(got, g.SmolLM2) {
			t.Errorf("%q: %v, want %v", g.Text, got, g.SmolLM2)
		}
		lacks := slices.ContainsFunc([]byte(g.Text), func(b byte) bool { return m.tok.byteIDs[b] < 0 })
		if got := m.tok.Decode(g.SmolLM2); got != g.Text && !lacks {
			t.Errorf("%q comes back as %q", g.Text, got)
		}
	}
	_, ref := references(t)
	chat := m.tok.EncodeChat([]Message{{"system", "You are a helpful assistant."}, {"user", "What is the capital of France?"}})
	if !slices.Equal(chat, ref.Prompt) {
		t.Errorf("chat %v, want %v", chat, ref.Prompt)
	}
	if ref.Tokens[len(ref.Tokens)-1] != m.tok.EOS() {
		t.Errorf("the answer ends with %d, the end of a text is %d", ref.Tokens[len(ref.Tokens)-1], m.tok.EOS())
	}
	ref.agree(t, m)
}

func TestSmolLM2BitIdentity(t *testing.T) {
	m := smollm2(t)
	_, ref := references(t)
	in, tables := tester(t, m, Geometry{1, 1, 16}, 8)
	want := one(t, in, ref.Prompt, 0, tables)
	for _, geo := range []Geometry{{3, 1, 16}, {1, 4, 5}, {3, 7, 16}} {
		in, tables := tester(t, m, geo, 8)
		one(t, in, ref.Prompt[:7], 0, tables)
		if got := one(t, in, ref.Prompt[7:], 7, tables); !sameBits(got, want) {
			t.Errorf("%+v: logits differ", geo)
		}
	}
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}
