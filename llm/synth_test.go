package llm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// synth describes a small random model, written as a GGUF.
type synth struct {
	layers, dim, heads, kvHeads, ffn int
	types                            []uint32 // of the matrices, one after the other
	tied                             bool
	extra                            string         // a tensor that no llama has
	meta                             map[string]any // further keys: uint32, float32, string
}

const synthContext = 64

var le = binary.LittleEndian

func appendString(b []byte, s string) []byte {
	return append(le.AppendUint64(b, uint64(len(s))), s...)
}

func appendValue(b []byte, key string, v any) []byte {
	b = appendString(b, key)
	switch v := v.(type) {
	case uint32:
		return le.AppendUint32(le.AppendUint32(b, gU32), v)
	case float32:
		return le.AppendUint32(le.AppendUint32(b, gF32), math.Float32bits(v))
	case string:
		return appendString(le.AppendUint32(b, gString), v)
	case []string:
		b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, gArray), gString), uint64(len(v)))
		for _, s := range v {
			b = appendString(b, s)
		}
		return b
	}
	panic(fmt.Sprintf("value of type %T", v))
}

// halfOf is the half-precision number nearest below a small positive normal one.
func halfOf(f float32) uint16 {
	bits := math.Float32bits(f)
	return uint16((bits>>23-112)<<10 | bits>>13&1023)
}

// data is rows × cols random numbers of a type.
func (s synth) data(rng *rand.Rand, typ uint32, n int) []byte {
	var b []byte
	q := quants[typ]
	for range n / q.block {
		switch q.name {
		case "F32":
			b = le.AppendUint32(b, math.Float32bits(float32(rng.NormFloat64())/8))
		case "F16":
			b = le.AppendUint16(b, halfOf(rng.Float32()/8+0.01)|uint16(rng.IntN(2))<<15)
		default:
			b = le.AppendUint16(b, halfOf(0.01+rng.Float32()/100))
			if q.name == "Q4_1" {
				b = le.AppendUint16(b, halfOf(0.08)|1<<15)
			}
			for len(b)%q.bytes != 0 {
				b = append(b, byte(rng.Uint32()))
			}
		}
	}
	return b
}

func (s synth) file() []byte {
	rng := rand.New(rand.NewPCG(uint64(s.dim), uint64(s.kvHeads)))
	var tokens []string
	for _, r := range byteRunes() {
		tokens = append(tokens, string(r))
	}
	meta := map[string]any{
		"general.architecture": "llama", "llama.block_count": uint32(s.layers), "llama.context_length": uint32(synthContext),
		"llama.embedding_length": uint32(s.dim), "llama.feed_forward_length": uint32(s.ffn),
		"llama.attention.head_count": uint32(s.heads), "llama.attention.head_count_kv": uint32(s.kvHeads),
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.bos_token_id": uint32(0), "tokenizer.ggml.eos_token_id": uint32(0),
	}
	for k, v := range s.meta {
		meta[k] = v
	}
	var head, info, data []byte
	for _, k := range slices.Sorted(maps.Keys(meta)) {
		head = appendValue(head, k, meta[k])
	}
	count := 0
	add := func(name string, typ uint32, dims ...int) {
		n := 1
		info = le.AppendUint32(appendString(info, name), uint32(len(dims)))
		for _, d := range dims {
			n *= d
			info = le.AppendUint64(info, uint64(d))
		}
		info = le.AppendUint64(le.AppendUint32(info, typ), uint64(len(data)))
		data = append(data, s.data(rng, typ, n)...)
		data = append(data, make([]byte, -len(data)&31)...)
		count++
	}
	matrix := func(name string, rows, cols int) { add(name+".weight", s.types[count%len(s.types)], cols, rows) }
	kv := s.dim / s.heads * s.kvHeads
	matrix("token_embd", 256, s.dim)
	if !s.tied {
		matrix("output", 256, s.dim)
	}
	add("output_norm.weight", 0, s.dim)
	for l := range s.layers {
		b := fmt.Sprintf("blk.%d.", l)
		matrix(b+"attn_q", s.dim, s.dim)
		matrix(b+"attn_k", kv, s.dim)
		matrix(b+"attn_v", kv, s.dim)
		matrix(b+"attn_output", s.dim, s.dim)
		matrix(b+"ffn_gate", s.ffn, s.dim)
		matrix(b+"ffn_up", s.ffn, s.dim)
		matrix(b+"ffn_down", s.dim, s.ffn)
		add(b+"attn_norm.weight", 0, s.dim)
		add(b+"ffn_norm.weight", 0, s.dim)
	}
	if s.extra != "" {
		add(s.extra, 0, s.dim)
	}
	file := le.AppendUint64(le.AppendUint64([]byte("GGUF\x03\x00\x00\x00"), uint64(count)), uint64(len(meta)))
	file = append(append(file, head...), info...)
	file = append(file, make([]byte, -len(file)&31)...)
	return append(file, data...)
}

// Every type, whether its rows are expanded once or at each use; heads that do not fill blocks, odd numbers of KV heads, an output of its own.
func TestBitIdentityOfTypes(t *testing.T) {
	for name, c := range map[string]struct {
		s    synth
		geos []Geometry
	}{
		"mixed":         {synth{layers: 3, dim: 64, heads: 4, kvHeads: 4, ffn: 96, types: []uint32{0, 1, 2, 3, 8}}, []Geometry{{4, 3, 4}, {2, 2, 3}}},
		"three KV":      {synth{layers: 2, dim: 96, heads: 6, kvHeads: 3, ffn: 192, types: []uint32{8, 3}, tied: true}, []Geometry{{3, 2, 5}, {3, 1, 16}}},
		"six over rank": {synth{layers: 2, dim: 96, heads: 6, kvHeads: 6, ffn: 96, types: []uint32{2, 8, 1}, tied: true}, []Geometry{{2, 1, 16}, {3, 2, 7}, {6, 2, 1}}},
	} {
		file := c.s.file()
		ids := []int32{7, 200, 31, 31, 0, 90, 255, 14, 66, 3, 121, 8, 8, 45, 170, 9, 33}
		var want []float32
		for _, limit := range []int{0, maxExpanded} {
			m, err := open(bytes.NewReader(file), int64(len(file)), limit)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, geo := range append([]Geometry{{1, 1, 16}}, c.geos...) {
				in, tables := tester(t, m, geo, synthContext)
				for _, chunk := range []int{len(ids), 5, 1} {
					var got []float32
					for from := 0; from < len(ids); from += chunk {
						got = one(t, in, ids[from:min(from+chunk, len(ids))], from, tables)
					}
					if want == nil {
						want = got
					}
					if !sameBits(got, want) {
						t.Errorf("%s: %+v chunk %d, %d elements expanded: logits differ", name, geo, chunk, limit)
					}
				}
			}
		}
		if slices.ContainsFunc(want, func(v float32) bool { return v != v }) || slices.Min(want) == slices.Max(want) {
			t.Errorf("%s: logits say nothing: %v", name, want[:8])
		}
	}
}

func TestUnsupportedModels(t *testing.T) {
	good := synth{layers: 1, dim: 64, heads: 4, kvHeads: 2, ffn: 96, types: []uint32{8}}
	if _, err := openBytes(good.file()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*synth)
		want   error
		says   string
	}{
		"bias":            {func(s *synth) { s.extra = "blk.0.attn_q.bias" }, ErrUnsupported, `tensor "blk.0.attn_q.bias"`},
		"scaled rotation": {func(s *synth) { s.meta = map[string]any{"llama.rope.scaling.type": "yarn"} }, ErrUnsupported, `"yarn"`},
		"part rotated":    {func(s *synth) { s.meta = map[string]any{"llama.rope.dimension_count": uint32(8)} }, ErrUnsupported, "8 rotated dimensions"},
		"base":            {func(s *synth) { s.meta = map[string]any{"llama.rope.freq_base": float32(0)} }, ErrFormat, "llama.rope.freq_base"},
		"epsilon":         {func(s *synth) { s.meta = map[string]any{"llama.attention.layer_norm_rms_epsilon": float32(-1)} }, ErrFormat, "epsilon"},
		"heads":           {func(s *synth) { s.meta = map[string]any{"llama.attention.head_count_kv": uint32(3)} }, ErrUnsupported, "4 heads over 3 KV heads"},
		"context":         {func(s *synth) { s.meta = map[string]any{"llama.context_length": uint32(1 << 30)} }, ErrFormat, "llama.context_length"},
		"type of a key":   {func(s *synth) { s.meta = map[string]any{"llama.block_count": "one"} }, ErrFormat, `"llama.block_count" is one`},
		"alignment":       {func(s *synth) { s.meta = map[string]any{"general.alignment": uint32(0)} }, ErrFormat, "general.alignment"},
		"pre-tokenizer":   {func(s *synth) { s.meta = map[string]any{"tokenizer.ggml.pre": "llama-bpe"} }, ErrUnsupported, `"llama-bpe"`},
		"end token":       {func(s *synth) { s.meta = map[string]any{"tokenizer.ggml.eos_token_id": uint32(256)} }, ErrFormat, "eos_token_id"},
		"merge":           {func(s *synth) { s.meta = map[string]any{"tokenizer.ggml.merges": []string{"a b"}} }, ErrFormat, `merge 0, "a b"`},
	} {
		s := good
		c.change(&s)
		if _, err := openBytes(s.file()); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v that says %q", name, err, c.want, c.says)
		}
	}
}

// Layers are reported in order, each with its stage, when its K and V are in place for good.
func TestStepLayers(t *testing.T) {
	s := synth{layers: 5, dim: 64, heads: 4, kvHeads: 2, ffn: 96, types: []uint32{0}}
	m, err := openBytes(s.file())
	if err != nil {
		t.Fatal(err)
	}
	geo := Geometry{TP: 2, PP: 2, PageSize: 4}
	in, tables := tester(t, m, geo, 4)
	kept := map[int][]float32{}
	snapshot := func(layer int) (all []float32) {
		for _, r := range in.stage(layer) {
			all = append(append(all, r.kv[layer-r.start]...), r.kv[r.end-r.start+layer-r.start]...)
		}
		return all
	}
	var got [][2]int
	_, err = in.StepLayers(t.Context(), []Seq{{Tokens: []int32{1, 2, 3, 4, 5, 6}, Pages: tables}}, func(stage, layer int) {
		got = append(got, [2]int{stage, layer})
		kept[layer] = snapshot(layer)
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := [][2]int{{0, 0}, {0, 1}, {1, 2}, {1, 3}, {1, 4}}; !slices.Equal(got, want) {
		t.Errorf("layers %v, want %v", got, want)
	}
	for l := range s.layers {
		if !sameBits(kept[l], snapshot(l)) {
			t.Errorf("layer %d changed after it was reported", l)
		}
		if !slices.ContainsFunc(kept[l], func(v float32) bool { return v != 0 }) {
			t.Errorf("layer %d was reported empty", l)
		}
	}
}
