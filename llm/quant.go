package llm

import (
	"encoding/binary"
	"math"
)

// quant is a tensor type: blocks of elements, each in so many bytes.
type quant struct {
	name         string
	block, bytes int
	dequantize   func(dst []float32, src []byte) // whole blocks
}

// quants are the types that can be read, by GGUF's number.
var quants = map[uint32]*quant{
	0: {"F32", 1, 4, func(dst []float32, src []byte) {
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	}},
	1: {"F16", 1, 2, func(dst []float32, src []byte) {
		for i := range dst {
			dst[i] = half(src[2*i:])
		}
	}},
	2: {"Q4_0", 32, 18, func(dst []float32, src []byte) {
		for ; len(dst) > 0; dst, src = dst[32:], src[18:] {
			d := half(src)
			for i, q := range src[2:18] {
				dst[i] = d * float32(int(q&15)-8)
				dst[i+16] = d * float32(int(q>>4)-8)
			}
		}
	}},
	3: {"Q4_1", 32, 20, func(dst []float32, src []byte) {
		for ; len(dst) > 0; dst, src = dst[32:], src[20:] {
			d, m := half(src), half(src[2:])
			for i, q := range src[4:20] {
				dst[i] = float32(d*float32(q&15)) + m
				dst[i+16] = float32(d*float32(q>>4)) + m
			}
		}
	}},
	8: {"Q8_0", 32, 34, func(dst []float32, src []byte) {
		for ; len(dst) > 0; dst, src = dst[32:], src[34:] {
			d := half(src)
			for i, q := range src[2:34] {
				dst[i] = d * float32(int8(q))
			}
		}
	}},
}

// half reads an IEEE 754 half-precision number.
func half(b []byte) float32 {
	h := uint32(binary.LittleEndian.Uint16(b))
	sign, exp, frac := h>>15<<31, h>>10&31, h&1023
	switch {
	case exp == 0 && frac == 0:
		return math.Float32frombits(sign)
	case exp == 0: // subnormal
		f := float32(frac) / (1 << 24)
		if sign != 0 {
			return -f
		}
		return f
	case exp == 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// tensor is a matrix, row by row as in the file, or a part of one.
type tensor struct {
	rows, cols int
	q          *quant
	b          []byte // rows of stride bytes, the part's first row at 0
	stride     int
	f          []float32 // rows of ld numbers, when the tensor is dense
	ld         int
	from       int // first column of the part
}

// dense is the same matrix with its numbers themselves.
func (t *tensor) dense() *tensor {
	if t.f != nil {
		return t
	}
	d := &tensor{rows: t.rows, cols: t.cols, f: make([]float32, t.rows*t.cols), ld: t.cols}
	buf := make([]float32, t.buffer())
	for r := range t.rows {
		copy(d.f[r*t.cols:], t.view(buf, r))
	}
	return d
}

// packed is the same matrix, its rows one behind the other if it is dense: read with gaps between them, they take longer.
func (t *tensor) packed() *tensor {
	if t.f == nil || t.ld == t.cols {
		return t
	}
	p := &tensor{rows: t.rows, cols: t.cols, f: make([]float32, 0, t.rows*t.cols), ld: t.cols}
	for r := range t.rows {
		p.f = append(p.f, t.view(nil, r)...)
	}
	return p
}

// part is rows [r0, r1) and columns [c0, c1) of t, in t's memory.
func (t *tensor) part(r0, r1, c0, c1 int) *tensor {
	p := *t
	p.rows, p.cols, p.from = r1-r0, c1-c0, t.from+c0
	if t.f != nil {
		p.f = t.f[r0*t.ld : r1*t.ld]
	} else {
		p.b = t.b[r0*t.stride : r1*t.stride]
	}
	return &p
}

// buffer is the length of the buffer that view needs: whole blocks, wherever the part begins in them.
func (t *tensor) buffer() int {
	if t.f != nil {
		return 0
	}
	return t.cols + 2*t.q.block
}

// view is a row, in buf unless the tensor is dense. It must not be changed.
func (t *tensor) view(buf []float32, r int) []float32 {
	if t.f != nil {
		at := r*t.ld + t.from
		return t.f[at : at+t.cols]
	}
	first, last := t.from/t.q.block, (t.from+t.cols+t.q.block-1)/t.q.block
	buf = buf[:(last-first)*t.q.block]
	at := r * t.stride
	t.q.dequantize(buf, t.b[at+first*t.q.bytes:at+last*t.q.bytes])
	return buf[t.from-first*t.q.block:][:t.cols]
}
