package llm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Errors of reading a model.
var (
	ErrFormat      = errors.New("invalid GGUF")        // the file is broken
	ErrUnsupported = errors.New("unsupported GGUF")    // the file may be sound, but not for this package
	ErrGeometry    = errors.New("impossible geometry") // the model can't be cut that way
)

// Bounds of a GGUF file, far above any model that runs here.
const (
	maxKeys    = 1 << 16
	maxTensors = 1 << 16
	maxString  = 1 << 20
	maxArray   = 1 << 21
	maxDims    = 4
	maxTensor  = 1 << 36 // elements
)

// Types of metadata values.
const (
	gU8 = iota
	gI8
	gU16
	gI16
	gU32
	gI32
	gF32
	gBool
	gString
	gArray
	gU64
	gI64
	gF64
)

// gguf is a file's directory.
type gguf struct {
	r       io.ReaderAt
	size    int64
	meta    map[string]any // uint64, int64, float64, bool, string, []string, []float64, []int64
	tensors map[string]tensorInfo
	taken   map[string]bool // tensors that were read
	data    int64           // offset of the tensor data
}

type tensorInfo struct {
	name   string
	dims   []int // innermost first
	typ    uint32
	offset int64
}

// reader reads little-endian values and keeps the first error.
type reader struct {
	b   *bufio.Reader
	n   int64
	err error
}

func (r *reader) bytes(n int) []byte {
	if r.err != nil {
		return make([]byte, n)
	}
	b := make([]byte, n)
	k, err := io.ReadFull(r.b, b)
	r.n += int64(k)
	if err != nil {
		r.err = fmt.Errorf("%w: ends at byte %d", ErrFormat, r.n)
	}
	return b
}

func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.bytes(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.bytes(8)) }

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
	}
}

func (r *reader) str(what string) string {
	n := r.u64()
	if n > maxString {
		r.fail("%s of %d bytes at byte %d, want at most %d", what, n, r.n, maxString)
	}
	if r.err != nil {
		return ""
	}
	return string(r.bytes(int(n)))
}

func (r *reader) scalar(typ uint32) any {
	switch typ {
	case gU8:
		return uint64(r.bytes(1)[0])
	case gI8:
		return int64(int8(r.bytes(1)[0]))
	case gU16:
		return uint64(binary.LittleEndian.Uint16(r.bytes(2)))
	case gI16:
		return int64(int16(binary.LittleEndian.Uint16(r.bytes(2))))
	case gU32:
		return uint64(r.u32())
	case gI32:
		return int64(int32(r.u32()))
	case gF32:
		return float64(math.Float32frombits(r.u32()))
	case gBool:
		return r.bytes(1)[0] != 0
	case gString:
		return r.str("string")
	case gU64:
		return r.u64()
	case gI64:
		return int64(r.u64())
	case gF64:
		return math.Float64frombits(r.u64())
	}
	r.fail("value of type %d at byte %d", typ, r.n)
	return nil
}

func (r *reader) value(key string) any {
	typ := r.u32()
	if typ != gArray {
		return r.scalar(typ)
	}
	elem, n := r.u32(), r.u64()
	if n > maxArray {
		r.fail("%s has %d elements, want at most %d", key, n, maxArray)
		return nil
	}
	var list []any
	var texts []string
	for range n {
		if r.err != nil {
			return nil
		}
		if v := r.scalar(elem); elem == gString {
			texts = append(texts, v.(string))
		} else {
			list = append(list, v)
		}
	}
	if elem == gString {
		return texts
	}
	return list
}

// openGGUF reads a file's directory.
func openGGUF(src io.ReaderAt, size int64) (*gguf, error) {
	r := &reader{b: bufio.NewReaderSize(io.NewSectionReader(src, 0, size), 1<<16)}
	if magic := string(r.bytes(4)); r.err == nil && magic != "GGUF" {
		return nil, fmt.Errorf("%w: begins with %q, want \"GGUF\"", ErrFormat, magic)
	}
	if v := r.u32(); r.err == nil && v != 2 && v != 3 {
		return nil, fmt.Errorf("%w: version %d, want 2 or 3", ErrUnsupported, v)
	}
	nt, nk := r.u64(), r.u64()
	if nt > maxTensors || nk > maxKeys {
		r.fail("%d tensors and %d keys, want at most %d and %d", nt, nk, maxTensors, maxKeys)
	}
	g := &gguf{r: src, size: size, meta: map[string]any{}, tensors: map[string]tensorInfo{}, taken: map[string]bool{}}
	for i := uint64(0); i < nk && r.err == nil; i++ {
		key := r.str("key")
		if _, twice := g.meta[key]; twice {
			r.fail("key %q is there twice", key)
		}
		g.meta[key] = r.value(key)
	}
	for i := uint64(0); i < nt && r.err == nil; i++ {
		g.readTensor(r)
	}
	if r.err != nil {
		return nil, r.err
	}
	align := int64(32)
	if v, ok := g.meta["general.alignment"].(uint64); ok {
		if v == 0 || v > 1<<20 {
			return nil, fmt.Errorf("%w: general.alignment is %d", ErrFormat, v)
		}
		align = int64(v)
	}
	g.data = (r.n + align - 1) / align * align
	return g, nil
}

func (g *gguf) readTensor(r *reader) {
	t := tensorInfo{name: r.str("tensor name")}
	n := r.u32()
	if n < 1 || n > maxDims {
		r.fail("tensor %q has %d dimensions, want 1 to %d", t.name, n, maxDims)
		return
	}
	total := uint64(1)
	for range n {
		d := r.u64()
		if d == 0 || d > maxTensor || total*d > maxTensor {
			r.fail("tensor %q has a dimension of %d", t.name, d)
			return
		}
		total *= d
		t.dims = append(t.dims, int(d))
	}
	t.typ = r.u32()
	off := r.u64()
	if off > uint64(g.size) {
		r.fail("tensor %q begins at %d, the file has %d bytes", t.name, off, g.size)
		return
	}
	t.offset = int64(off)
	if _, twice := g.tensors[t.name]; twice {
		r.fail("tensor %q is there twice", t.name)
	}
	g.tensors[t.name] = t
}

// tensor loads rows × cols elements; a vector has one row.
func (g *gguf) tensor(name string, rows, cols int) (*tensor, error) {
	t, ok := g.tensors[name]
	if !ok {
		return nil, fmt.Errorf("%w: tensor %q is missing", ErrFormat, name)
	}
	g.taken[name] = true
	want := []int{cols, rows}
	if rows == 1 {
		want = want[:1]
	}
	if len(t.dims) != len(want) || t.dims[0] != cols || rows > 1 && t.dims[1] != rows {
		return nil, fmt.Errorf("%w: tensor %q has dimensions %v, want %v", ErrFormat, name, t.dims, want)
	}
	q, ok := quants[t.typ]
	if !ok {
		return nil, fmt.Errorf("%w: tensor %q has type %d, want F32, F16, Q4_0, Q4_1 or Q8_0", ErrUnsupported, name, t.typ)
	}
	if cols%q.block != 0 {
		return nil, fmt.Errorf("%w: tensor %q of type %s has rows of %d elements, want a multiple of %d", ErrFormat, name, q.name, cols, q.block)
	}
	stride := cols / q.block * q.bytes
	n := int64(rows) * int64(stride)
	if g.data+t.offset+n > g.size {
		return nil, fmt.Errorf("%w: tensor %q needs %d bytes at %d, the file has %d", ErrFormat, name, n, g.data+t.offset, g.size)
	}
	b := make([]byte, n)
	if _, err := g.r.ReadAt(b, g.data+t.offset); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("tensor %q: %w", name, err)
	}
	return &tensor{rows: rows, cols: cols, q: q, stride: stride, b: b}, nil
}

// unread refuses a file with a tensor that was not read: the model computes something with it (a bias, experts, scaled rotation) that this
// package does not.
func (g *gguf) unread() error {
	var rest []string
	for name := range g.tensors {
		if !g.taken[name] {
			rest = append(rest, name)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return fmt.Errorf("%w: tensor %q (of %d such) has no place in a plain llama", ErrUnsupported, slices.Min(rest), len(rest))
}

// uint and float read metadata; what is missing takes def, and where it is needed is an error.
func (g *gguf) uint(key string, def uint64, needed bool) (int, error) {
	v, ok := g.meta[key]
	if !ok && needed {
		return 0, fmt.Errorf("%w: key %q is missing", ErrFormat, key)
	}
	if !ok {
		return int(def), nil
	}
	switch n := v.(type) {
	case uint64:
		if n <= 1<<31 {
			return int(n), nil
		}
	case int64:
		if n >= 0 && n <= 1<<31 {
			return int(n), nil
		}
	}
	return 0, fmt.Errorf("%w: key %q is %v, want a whole number up to 2^31", ErrFormat, key, v)
}

func (g *gguf) float(key string, def float64) (float64, error) {
	v, ok := g.meta[key]
	if !ok {
		return def, nil
	}
	f, ok := v.(float64)
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%w: key %q is %v, want a number", ErrFormat, key, v)
	}
	return f, nil
}
