package llm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// Config is the shape of a model.
type Config struct {
	Name        string
	Fingerprint string // SHA-256 of the file, hexadecimal: two instances with the same one compute the same
	Layers      int
	Dim         int
	Heads       int
	KVHeads     int
	HeadDim     int
	FFN         int
	Vocab       int
	Context     int // tokens
	RopeBase    float32
	Eps         float32
}

// DType names the element type of the KV cache.
const DType = "float32"

// Model is a model's weights. It is read only.
type Model struct {
	cfg    Config
	embed  *tensor
	out    *tensor // the embedding again where the file has none
	norm   []float32
	layers []layer
	tok    *Tokenizer
}

type layer struct {
	attnNorm, ffnNorm []float32
	q, k, v, gate, up *tensor
	o, down           []*tensor // by KV-head group: its columns
}

// Config is the model's shape.
func (m *Model) Config() Config { return m.cfg }

// Tokenizer is the model's tokenizer.
func (m *Model) Tokenizer() *Tokenizer { return m.tok }

// OpenFile reads a GGUF file.
func OpenFile(path string) (*Model, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	m, err := Open(f, st.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Open reads a GGUF of size bytes. Errors: ErrFormat, ErrUnsupported, naming the key, tensor or type.
func Open(r io.ReaderAt, size int64) (*Model, error) { return open(r, size, maxExpanded) }

// open keeps models of up to expanded elements as float32.
func open(r io.ReaderAt, size int64, expanded int) (*Model, error) {
	g, err := openGGUF(r, size)
	if err != nil {
		return nil, err
	}
	if arch, _ := g.meta["general.architecture"].(string); arch != "llama" {
		return nil, fmt.Errorf("%w: architecture %q, want \"llama\"", ErrUnsupported, arch)
	}
	m := &Model{}
	if err := m.readConfig(g); err != nil {
		return nil, err
	}
	if err := m.readTensors(g, expanded); err != nil {
		return nil, err
	}
	if m.tok, err = newTokenizer(g, m.cfg.Vocab); err != nil {
		return nil, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, size)); err != nil {
		return nil, fmt.Errorf("fingerprint: %w", err)
	}
	m.cfg.Fingerprint = hex.EncodeToString(h.Sum(nil))
	return m, nil
}

// Bounds of a shape.
const (
	maxLayers = 1 << 10
	maxDim    = 1 << 15
	maxFFN    = 1 << 17
	maxCtx    = 1 << 20
	maxVocab  = 1 << 20

	maxRopeBase = 1e12
	maxExpanded = 64 << 20 // elements of a model that is kept as float32
)

func (m *Model) readConfig(g *gguf) error {
	c := &m.cfg
	c.Name, _ = g.meta["general.name"].(string)
	tokens, _ := g.meta["tokenizer.ggml.tokens"].([]string)
	c.Vocab = len(tokens)
	var rope int
	for _, f := range []struct {
		key    string
		dst    *int
		def    func() int
		lo, hi int
	}{
		{"llama.block_count", &c.Layers, nil, 1, maxLayers},
		{"llama.embedding_length", &c.Dim, nil, 1, maxDim},
		{"llama.feed_forward_length", &c.FFN, nil, 1, maxFFN},
		{"llama.context_length", &c.Context, nil, 1, maxCtx},
		{"llama.attention.head_count", &c.Heads, nil, 1, maxDim},
		{"llama.attention.head_count_kv", &c.KVHeads, func() int { return c.Heads }, 1, maxDim},
		{"llama.attention.key_length", &c.HeadDim, func() int { return c.Dim / max(1, c.Heads) }, 1, maxDim},
		{"llama.rope.dimension_count", &rope, func() int { return c.HeadDim }, 2, maxDim},
	} {
		def := 0
		if f.def != nil {
			def = f.def()
		}
		v, err := g.uint(f.key, uint64(def), f.def == nil)
		if err != nil {
			return err
		}
		if v < f.lo || v > f.hi {
			return fmt.Errorf("%w: key %q is %d, want %d to %d", ErrFormat, f.key, v, f.lo, f.hi)
		}
		*f.dst = v
	}
	base, err := g.float("llama.rope.freq_base", 10000)
	if err != nil {
		return err
	}
	eps, err := g.float("llama.attention.layer_norm_rms_epsilon", 1e-5)
	if err != nil {
		return err
	}
	c.RopeBase, c.Eps = float32(base), float32(eps)
	scaling, _ := g.meta["llama.rope.scaling.type"].(string)
	switch {
	case !(c.RopeBase >= 1 && c.RopeBase <= maxRopeBase):
		return fmt.Errorf("%w: key \"llama.rope.freq_base\" is %v, want 1 to %v", ErrFormat, base, float32(maxRopeBase))
	case !(c.Eps >= 0 && c.Eps < 1):
		return fmt.Errorf("%w: key \"llama.attention.layer_norm_rms_epsilon\" is %v, want 0 to 1", ErrFormat, eps)
	case scaling != "" && scaling != "none":
		return fmt.Errorf("%w: key \"llama.rope.scaling.type\" is %q, want \"none\"", ErrUnsupported, scaling)
	case c.Vocab < 1 || c.Vocab > maxVocab:
		return fmt.Errorf("%w: %d tokens, want 1 to %d", ErrFormat, c.Vocab, maxVocab)
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("%w: %d heads over %d KV heads", ErrUnsupported, c.Heads, c.KVHeads)
	case rope != c.HeadDim || c.HeadDim%2 != 0:
		return fmt.Errorf("%w: %d rotated dimensions of heads of %d, want all of an even number", ErrUnsupported, rope, c.HeadDim)
	case c.FFN%c.KVHeads != 0:
		return fmt.Errorf("%w: FFN of %d over %d KV heads", ErrUnsupported, c.FFN, c.KVHeads)
	}
	return nil
}

func (m *Model) readTensors(g *gguf, expanded int) (err error) {
	c := m.cfg
	elements := 0
	for _, t := range g.tensors {
		n := 1
		for _, d := range t.dims {
			n *= d
		}
		elements += n
	}
	small := elements <= expanded
	matrix := func(name string, rows, cols int) *tensor {
		if err != nil {
			return nil
		}
		var t *tensor
		if t, err = g.tensor(name+".weight", rows, cols); err == nil && small {
			return t.dense() // faster, and for a small model the memory does not matter
		}
		return t
	}
	vector := func(name string) []float32 {
		v := make([]float32, c.Dim)
		if t := matrix(name, 1, c.Dim); err == nil {
			copy(v, t.view(make([]float32, t.buffer()), 0))
		}
		return v
	}
	groups := func(name string, cols int) (parts []*tensor) {
		t := matrix(name, c.Dim, cols)
		if err != nil {
			return nil
		}
		share := cols / c.KVHeads
		for g := range c.KVHeads {
			parts = append(parts, t.part(0, c.Dim, g*share, (g+1)*share).packed())
		}
		return parts
	}
	m.embed = matrix("token_embd", c.Vocab, c.Dim)
	m.norm = vector("output_norm")
	m.out = m.embed
	if _, own := g.tensors["output.weight"]; own {
		m.out = matrix("output", c.Vocab, c.Dim)
	}
	kv := c.KVHeads * c.HeadDim
	for i := range c.Layers {
		b := fmt.Sprintf("blk.%d.", i)
		m.layers = append(m.layers, layer{
			attnNorm: vector(b + "attn_norm"), ffnNorm: vector(b + "ffn_norm"),
			q: matrix(b+"attn_q", c.Heads*c.HeadDim, c.Dim), k: matrix(b+"attn_k", kv, c.Dim), v: matrix(b+"attn_v", kv, c.Dim),
			o: groups(b+"attn_output", c.Heads*c.HeadDim), gate: matrix(b+"ffn_gate", c.FFN, c.Dim), up: matrix(b+"ffn_up", c.FFN, c.Dim),
			down: groups(b+"ffn_down", c.FFN),
		})
		if err != nil {
			return err
		}
	}
	if err == nil {
		err = g.unread()
	}
	return err
}
