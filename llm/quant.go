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

// tensor is a matrix, row by row as in the file.
type tensor struct {
	rows, cols, stride int
	q                  *quant
	b                  []byte
	f                  []float32 // all rows, when the tensor was expanded
}

// expand keeps the tensor's numbers themselves: faster, and for a small model the memory does not matter.
func (t *tensor) expand() {
	f := make([]float32, t.rows*t.cols)
	for r := range t.rows {
		t.row(f[r*t.cols:(r+1)*t.cols], r)
	}
	t.f, t.b = f, nil
}

// view is a row, in buf unless the tensor was expanded. It must not be changed.
func (t *tensor) view(buf []float32, r int) []float32 {
	if t.f != nil {
		return t.f[r*t.cols : (r+1)*t.cols]
	}
	t.row(buf, r)
	return buf
}

// row writes a row to dst.
func (t *tensor) row(dst []float32, r int) {
	if t.f != nil {
		copy(dst, t.f[r*t.cols:])
		return
	}
	t.q.dequantize(dst, t.b[r*t.stride:(r+1)*t.stride])
}

// dot adds a[i]*b[i] in a fixed order: eight partial sums over i mod 8, then a tree.
func dot(a, b []float32) float32 {
	b = b[:len(a)]
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	i := 0
	for ; i+8 <= len(a); i += 8 {
		x, y := a[i:i+8:i+8], b[i:i+8:i+8]
		s0 += float32(x[0] * y[0])
		s1 += float32(x[1] * y[1])
		s2 += float32(x[2] * y[2])
		s3 += float32(x[3] * y[3])
		s4 += float32(x[4] * y[4])
		s5 += float32(x[5] * y[5])
		s6 += float32(x[6] * y[6])
		s7 += float32(x[7] * y[7])
	}
	s := float32(float32(s0+s4)+float32(s2+s6)) + float32(float32(s1+s5)+float32(s3+s7))
	for ; i < len(a); i++ {
		s += float32(a[i] * b[i])
	}
	return s
}
