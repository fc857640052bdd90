package llm

import "math"

// The functions of this file give the same bits on every machine. Those of package math need not: math.Exp on amd64 uses fused
// multiply-add where the processor has it, and a compiler may fuse a*b+c unless the product is converted.

// Constants of range reduction: ln 2 and π/2 in parts whose products with a small whole number are exact.
const (
	log2e = 1.44269504088896338700e+00
	ln2Hi = 6.93147180369123816490e-01
	ln2Lo = 1.90821492927058770002e-10

	twoOverPi = 6.36619772367581382433e-01
	halfPi1   = 1.57079632673412561417e+00
	halfPi2   = 6.07710050630396597660e-11
	halfPi3   = 2.02226624871116645580e-21
)

// Taylor's series in the square of the argument, highest power first.
var (
	cosh   = [8]float64{0, 1. / 479001600, 1. / 3628800, 1. / 40320, 1. / 720, 1. / 24, 1. / 2, 1}
	sinh   = [8]float64{0, 0, 1. / 39916800, 1. / 362880, 1. / 5040, 1. / 120, 1. / 6, 1}
	cosine = [8]float64{-1. / 87178291200, 1. / 479001600, -1. / 3628800, 1. / 40320, -1. / 720, 1. / 24, -1. / 2, 1}
	sine   = [8]float64{0, 1. / 6227020800, -1. / 39916800, 1. / 362880, -1. / 5040, 1. / 120, -1. / 6, 1}
)

func series(z float64, c *[8]float64) float64 {
	s := c[0]
	for _, x := range c[1:] {
		s = x + float64(s*z)
	}
	return s
}

// exp is e^x to within 1e-14 of its value; below -700 it is 0, above 700 infinite.
func exp(x float64) float64 {
	switch {
	case x != x:
		return x
	case x < -700:
		return 0
	case x > 700:
		return math.Inf(1)
	}
	k := math.Floor(float64(x*log2e) + 0.5)
	r := x - float64(k*ln2Hi) - float64(k*ln2Lo)
	z := float64(r * r)
	y := series(z, &cosh) + float64(r*series(z, &sinh))
	return float64(y * math.Float64frombits(uint64(int64(k)+1023)<<52))
}

// ln is the natural logarithm of a positive finite x, by Halley's iteration on exp.
func ln(x float64) float64 {
	_, e := math.Frexp(x)
	y := float64(e) * ln2Hi
	for range 5 {
		ey := exp(y)
		y += float64(2 * ((x - ey) / (x + ey)))
	}
	return y
}

// sincos is the sine and cosine of 0 <= x < 2^20, to within 1e-13.
func sincos(x float64) (sin, cos float64) {
	k := math.Floor(float64(x*twoOverPi) + 0.5)
	r := x - float64(k*halfPi1) - float64(k*halfPi2) - float64(k*halfPi3)
	z := float64(r * r)
	s, c := float64(r*series(z, &sine)), series(z, &cosine)
	switch int64(k) & 3 {
	case 0:
		return s, c
	case 1:
		return c, -s
	case 2:
		return -s, -c
	}
	return -c, s
}

// fold adds up eight partial sums, by the tree that every dot product ends with. (Arguments, not an array: that would go through memory, which
// short dot products feel.)
func fold(s0, s1, s2, s3, s4, s5, s6, s7 float32) float32 {
	return float32(float32(s0+s4)+float32(s2+s6)) + float32(float32(s1+s5)+float32(s3+s7))
}

// dot adds a[i]*b[i] in a fixed order: eight partial sums over i mod 8, then a tree, then what is left behind the last eight.
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
	s := fold(s0, s1, s2, s3, s4, s5, s6, s7)
	for ; i < len(a); i++ {
		s += float32(a[i] * b[i])
	}
	return s
}

// tree adds up the shares of the KV-head groups: the sum of the first half and the sum of the second.
func tree(s []float32) float32 {
	if len(s) == 1 {
		return s[0]
	}
	h := (len(s) + 1) / 2
	return tree(s[:h]) + tree(s[h:])
}
