package llm

import (
	"math/rand/v2"
	"slices"
)

// Sampler chooses a token from logits. The choice depends on seed and position alone, not on what was sampled before or in which process.
type Sampler struct {
	Seed        uint64
	Temperature float32 // 0: the largest logit
	TopK        int     // 0: all
	TopP        float32 // 0 or 1: all
}

// Sample returns the token for a position: the largest logit, of equals the one with the lowest number, or one drawn at random.
func (s Sampler) Sample(logits []float32, position int) int32 {
	if s.Temperature <= 0 {
		best := 0
		for i, v := range logits {
			if v > logits[best] {
				best = i
			}
		}
		return int32(best)
	}
	ids := make([]int32, len(logits))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortFunc(ids, func(a, b int32) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return int(a - b)
	})
	if s.TopK > 0 {
		ids = ids[:min(s.TopK, len(ids))]
	}
	p := make([]float64, len(ids))
	sum := 0.0
	for i, id := range ids {
		p[i] = exp(float64(logits[id]-logits[ids[0]]) / float64(s.Temperature))
		sum += p[i]
	}
	if s.TopP > 0 && s.TopP < 1 {
		kept := 0.0
		for i := range p {
			kept += p[i]
			if kept >= float64(s.TopP)*sum {
				p, sum = p[:i+1], kept
				break
			}
		}
	}
	x := rand.New(rand.NewPCG(s.Seed, uint64(position))).Float64() * sum
	for i := range p {
		if x -= p[i]; x < 0 {
			return ids[i]
		}
	}
	return ids[len(p)-1]
}
