package llm

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestExp(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100000 {
		x := rng.Float64()*1400 - 700
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 1e-14*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	for x, want := range map[float64]float64{0: 1, -701: 0, math.Inf(-1): 0, 701: math.Inf(1), math.Inf(1): math.Inf(1)} {
		if got := exp(x); got != want {
			t.Errorf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	if got := exp(math.NaN()); got == got {
		t.Errorf("exp(NaN) = %v", got)
	}
	// These bits hold on every machine.
	for x, want := range map[float64]uint64{1: 0x4005bf0a8b14576a, -0.3: 0x3fe7b4c869c37c05} {
		if got := math.Float64bits(exp(x)); got != want {
			t.Errorf("exp(%v) has bits %#x, want %#x", x, got, want)
		}
	}
}

func TestLn(t *testing.T) {
	for _, x := range []float64{1, 1.5, 2, 10000, 100000, 500000, 1e12} {
		if got, want := ln(x), math.Log(x); math.Abs(got-want) > 1e-13 {
			t.Errorf("ln(%v) = %v, want %v", x, got, want)
		}
	}
}

func TestSinCos(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 100000 {
		x := rng.Float64() * float64(int(1)<<(i%20))
		s, c := sincos(x)
		ws, wc := math.Sincos(x)
		if math.Abs(s-ws) > 1e-13 || math.Abs(c-wc) > 1e-13 {
			t.Fatalf("sincos(%v) = %v, %v, want %v, %v", x, s, c, ws, wc)
		}
	}
}

// dot adds in the order that it says.
func TestDot(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for n := range 100 {
		var a, b []float32
		for range n {
			a, b = append(a, float32(rng.NormFloat64())), append(b, float32(rng.NormFloat64()))
		}
		var s [8]float32
		whole := n - n%8
		for i := range whole {
			s[i%8] += float32(a[i] * b[i])
		}
		want := float32(float32(s[0]+s[4])+float32(s[2]+s[6])) + float32(float32(s[1]+s[5])+float32(s[3]+s[7]))
		for i := whole; i < n; i++ {
			want += float32(a[i] * b[i])
		}
		if got := dot(a, b); math.Float32bits(got) != math.Float32bits(want) {
			t.Errorf("%d numbers: %v, want %v", n, got, want)
		}
	}
}

// The tree over the groups is the same whichever ranks hand them in: it splits in the middle, the first half longer.
func TestTree(t *testing.T) {
	s := []float32{1, 0x1p-24, 0x1p-24, 3, 0x1p-23}
	want := float32(float32(s[0]+s[1])+s[2]) + float32(s[3]+s[4])
	if got := tree(s); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}
