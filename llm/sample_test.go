package llm

import (
	"math"
	"testing"
)

func TestSampleGreedy(t *testing.T) {
	for want, logits := range [][]float32{{3, 1, 3}, {-1, 2, 2}, {-5, -4, -3}} {
		if got := (Sampler{}).Sample(logits, 9); got != int32(want) {
			t.Errorf("%v: %d, want %d", logits, got, want)
		}
	}
}

// Drawn often, tokens come as often as their probability says, and never when they are cut off.
func TestSampleFrequencies(t *testing.T) {
	logits := []float32{float32(math.Log(0.1)), float32(math.Log(0.4)), float32(math.Log(0.2)), float32(math.Log(0.3))}
	const n = 20000
	for name, c := range map[string]struct {
		s    Sampler
		want [4]float64
	}{
		"all":                {Sampler{Temperature: 1}, [4]float64{0.1, 0.4, 0.2, 0.3}},
		"top-k 2":            {Sampler{Temperature: 1, TopK: 2}, [4]float64{0, 4. / 7, 0, 3. / 7}},
		"top-k 9":            {Sampler{Temperature: 1, TopK: 9}, [4]float64{0.1, 0.4, 0.2, 0.3}},
		"top-p 0.6":          {Sampler{Temperature: 1, TopP: 0.6}, [4]float64{0, 4. / 7, 0, 3. / 7}},
		"top-p 0.75":         {Sampler{Temperature: 1, TopP: 0.75}, [4]float64{0, 4. / 9, 2. / 9, 3. / 9}},
		"top-p small":        {Sampler{Temperature: 1, TopP: 1e-6}, [4]float64{0, 1, 0, 0}},
		"top-k 3, top-p 0.5": {Sampler{Temperature: 1, TopK: 3, TopP: 0.5}, [4]float64{0, 4. / 7, 0, 3. / 7}},
		"temperature 0.5":    {Sampler{Temperature: 0.5}, [4]float64{1. / 30, 16. / 30, 4. / 30, 9. / 30}},
	} {
		var got [4]int
		for i := range n {
			s := c.s
			s.Seed = 11
			got[s.Sample(logits, i)]++
		}
		for id, p := range c.want {
			if f := float64(got[id]) / n; math.Abs(f-p) > 0.02 || p == 0 && got[id] > 0 {
				t.Errorf("%s: token %d came with frequency %.3f, want %.3f", name, id, f, p)
			}
		}
	}
}

// Seed and position alone decide; these values hold in every process and on every machine.
func TestSampleSeed(t *testing.T) {
	logits := make([]float32, 100)
	for i, want := range []int32{99, 47, 23, 34} {
		s := Sampler{Seed: uint64(i / 2), Temperature: 1}
		if got := s.Sample(logits, i%2); got != want {
			t.Errorf("seed %d position %d: %d, want %d", s.Seed, i%2, got, want)
		}
	}
}
