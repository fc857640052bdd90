package llm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

func bundledBytes(t testing.TB) []byte {
	b, err := os.ReadFile("../model/gopherdoc-q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func openBytes(b []byte) (*Model, error) { return Open(bytes.NewReader(b), int64(len(b))) }

func TestBrokenFiles(t *testing.T) {
	good := bundledBytes(t)
	change := func(old, new string) []byte {
		if len(old) != len(new) || !bytes.Contains(good, []byte(old)) {
			t.Fatalf("%q is not there", old)
		}
		return bytes.Replace(good, []byte(old), []byte(new), 1)
	}
	typed := func(tensor string, typ uint32) []byte {
		b := bytes.Clone(good)
		at := bytes.Index(b, []byte(tensor)) + len(tensor)
		dims := int(binary.LittleEndian.Uint32(b[at:]))
		binary.LittleEndian.PutUint32(b[at+4+8*dims:], typ)
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		want error
		says string
	}{
		"empty":          {nil, ErrFormat, "ends at byte 0"},
		"other file":     {[]byte("\x7fELF and so on, long enough for a header"), ErrFormat, `want "GGUF"`},
		"version":        {append([]byte("GGUF\x09\x00\x00\x00"), good[8:]...), ErrUnsupported, "version 9"},
		"cut":            {good[:20000], ErrFormat, "ends at byte"},
		"data cut":       {good[:len(good)-100], ErrFormat, "output_norm"},
		"architecture":   {change("\x05\x00\x00\x00\x00\x00\x00\x00llama", "\x05\x00\x00\x00\x00\x00\x00\x00mamba"), ErrUnsupported, `architecture "mamba"`},
		"missing tensor": {change("blk.3.ffn_up.weight", "blk.3.ffn_ut.weight"), ErrFormat, `"blk.3.ffn_up.weight" is missing`},
		"missing key":    {change("llama.feed_forward_length", "llama.feed_forward_lenght"), ErrFormat, `"llama.feed_forward_length" is missing`},
		"tensor type":    {typed("blk.2.attn_q.weight", 14), ErrUnsupported, `tensor "blk.2.attn_q.weight" has type 14`},
		"tokenizer":      {change("gpt2", "lama"), ErrUnsupported, `tokenizer "lama"`},
		"counts":         {append(append(bytes.Clone(good[:8]), 255, 255, 255, 255, 255, 255, 255, 255), good[16:]...), ErrFormat, "tensors and"},
	} {
		if _, err := openBytes(c.b); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v that says %q", name, err, c.want, c.says)
		}
	}
}

// What opens also computes, whatever the numbers are; what does not says why.
func FuzzOpen(f *testing.F) {
	good := bundledBytes(f)
	f.Add(good[:4096])
	f.Add(good[:64])
	f.Add([]byte("GGUF\x03\x00\x00\x00"))
	f.Add(synth{layers: 1, dim: 32, heads: 2, kvHeads: 1, ffn: 32, types: []uint32{2, 3, 8}, tied: true}.file())
	f.Add(synth{layers: 2, dim: 8, heads: 2, kvHeads: 2, ffn: 6, types: []uint32{0, 1}}.file())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := openBytes(b)
		if err != nil {
			if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		size := min(4, m.cfg.Context)
		in, tables := tester(t, m, Geometry{m.cfg.KVHeads, m.cfg.Layers, size}, 1)
		ids := m.tok.Encode("ab")
		ids = ids[:min(len(ids), size)]
		if len(ids) > 0 && len(one(t, in, ids, 0, tables)) != m.cfg.Vocab {
			t.Fatal("logits are missing")
		}
	})
}

func TestQuants(t *testing.T) {
	h := func(f float32) []byte { // exact for the numbers used here
		bits := math.Float32bits(f)
		return binary.LittleEndian.AppendUint16(nil, uint16(bits>>16&0x8000|(bits>>23&255-112)<<10|bits>>13&1023))
	}
	block := func(head []byte, rest func(i int) byte, n int) []byte {
		b := bytes.Clone(head)
		for i := range n {
			b = append(b, rest(i))
		}
		return b
	}
	for name, c := range map[string]struct {
		typ  uint32
		src  []byte
		want func(i int) float32
	}{
		"Q8_0": {8, block(h(0.5), func(i int) byte { return byte(i - 16) }, 32), func(i int) float32 { return 0.5 * float32(i-16) }},
		"Q4_0": {2, block(h(2), func(i int) byte { return byte(i) | byte(15-i)<<4 }, 16), func(i int) float32 {
			if i < 16 {
				return 2 * float32(i-8)
			}
			return 2 * float32(15-(i-16)-8)
		}},
		"Q4_1": {3, block(append(h(2), h(-1)...), func(i int) byte { return byte(i) | byte(15-i)<<4 }, 16), func(i int) float32 {
			if i < 16 {
				return 2*float32(i) - 1
			}
			return 2*float32(15-(i-16)) - 1
		}},
	} {
		got := make([]float32, 32)
		quants[c.typ].dequantize(got, c.src)
		for i, v := range got {
			if v != c.want(i) {
				t.Errorf("%s element %d: %v, want %v", name, i, v, c.want(i))
			}
		}
	}
	for bits, want := range map[uint16]float32{0: 0, 0x3c00: 1, 0xc000: -2, 1: 1.0 / (1 << 24), 0x8001: -1.0 / (1 << 24), 0x7bff: 65504, 0x0400: 1.0 / (1 << 14)} {
		if got := half(binary.LittleEndian.AppendUint16(nil, bits)); got != want {
			t.Errorf("half %#x: %v, want %v", bits, got, want)
		}
	}
	if v := half([]byte{0, 0x7c}); !math.IsInf(float64(v), 1) {
		t.Errorf("infinity: %v", v)
	}
}

func TestStepRefuses(t *testing.T) {
	m, err := openBytes(bundledBytes(t))
	if err != nil {
		t.Fatal(err)
	}
	geo := Geometry{1, 1, 16}
	var regions [][]byte
	for range 12 {
		regions = append(regions, make([]byte, 2*geo.ItemLen(m.cfg)))
	}
	in, err := NewInstance(m, geo, [][][]byte{regions})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Seq{
		"no tokens":      {Pages: [][]int32{{0}}},
		"token":          {Tokens: []int32{2048}, Pages: [][]int32{{0}}},
		"negative token": {Tokens: []int32{-1}, Pages: [][]int32{{0}}},
		"position":       {Tokens: []int32{1}, Pos: 512, Pages: [][]int32{make([]int32, 64)}},
		"far position":   {Tokens: []int32{1}, Pos: math.MaxInt, Pages: [][]int32{make([]int32, 64)}},
		"page":           {Tokens: []int32{1}, Pages: [][]int32{{2}}},
		"few pages":      {Tokens: []int32{1}, Pos: 16, Pages: [][]int32{{0}}},
		"ranks":          {Tokens: []int32{1}},
	} {
		if _, err := in.Step(t.Context(), []Seq{s}); !errors.Is(err, ErrStep) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := in.Step(ended, []Seq{{Tokens: []int32{1}, Pages: [][]int32{{0}}}}); !errors.Is(err, context.Canceled) {
		t.Errorf("context that has ended: %v", err)
	}
	// The pages of each rank are its own: rank 1 has one more than rank 0.
	two, tables := tester(t, m, Geometry{2, 1, 16}, 2)
	for page, want := range map[int32]error{2: nil, 3: ErrStep} {
		if _, err := two.Step(t.Context(), []Seq{{Tokens: []int32{1}, Pages: [][]int32{tables[0], {page}}}}); !errors.Is(err, want) {
			t.Errorf("page %d of rank 1: %v, want %v", page, err, want)
		}
	}
	for name, memory := range map[string][][][]byte{
		"no rank":          {},
		"region missing":   {regions[1:]},
		"part of a page":   {append([][]byte{regions[0][4:]}, regions[1:]...)},
		"fewer pages":      {append(slices.Clone(regions[:11]), regions[11][:geo.ItemLen(m.cfg)])},
		"not aligned":      {append([][]byte{make([]byte, len(regions[0])+1)[1:]}, regions[1:]...)},
		"empty region":     {append([][]byte{{}}, regions[1:]...)},
		"one rank to many": {regions, regions},
	} {
		if _, err := NewInstance(m, geo, memory); !errors.Is(err, ErrGeometry) {
			t.Errorf("%s: %v, want %v", name, err, ErrGeometry)
		}
	}
	for _, g := range []Geometry{{3, 1, 16}, {1, 7, 16}, {1, 1, 0}, {0, 1, 16}} {
		if err := g.Validate(m.cfg); !errors.Is(err, ErrGeometry) {
			t.Errorf("%v: %v", g, err)
		}
	}
}
