package llm

import "time"

// DotSeconds is how long n multiplications take in dot on all processors, at the rate that is measured now.
func DotSeconds(n float64) float64 {
	a, b := make([]float32, 640), make([]float32, 640)
	for i := range a {
		a[i], b[i] = float32(i), 1/float32(i+1)
	}
	const rounds = 20000
	var sink [64]float32
	began := time.Now()
	parallel(2, 1, func(from, to int) {
		s := float32(0)
		for range rounds * (to - from) {
			s += dot(a, b)
		}
		sink[from] = s
	})
	return time.Since(began).Seconds() * n / (2 * rounds * float64(len(a)))
}

// ReadSeconds is how long all processors take to read n bytes of memory once, at the rate that is measured now.
func ReadSeconds(n int) float64 {
	src := make([]byte, n)
	const piece, rounds = 32 << 10, 8
	began := time.Now()
	for range rounds {
		parallel(n/piece, 16, func(from, to int) {
			var dst [piece]byte
			for i := from; i < to; i++ {
				copy(dst[:], src[i*piece:(i+1)*piece])
			}
		})
	}
	return time.Since(began).Seconds() / rounds
}
