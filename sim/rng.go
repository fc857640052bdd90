package sim

import "time"

// rng is a small random source (splitmix64). Each entity of a world has its own.
type rng struct{ state uint64 }

// newRNG makes the source of the entity that keys name.
func newRNG(keys ...uint64) rng {
	r := rng{0x9e3779b97f4a7c15}
	for _, k := range keys {
		r.state ^= k
		r.next()
		r.state = r.next()
	}
	return r
}

func (r *rng) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// n is a number in [0, limit).
func (r *rng) n(limit int) int { return int(r.next() % uint64(limit)) }

// oneIn is true once in k times.
func (r *rng) oneIn(k int) bool { return r.next()%uint64(k) == 0 }

// span is a duration in [lo, hi).
func (r *rng) span(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(r.next()%uint64(hi-lo))
}

// delay is mostly short and now and then long, up to limit.
func (r *rng) delay(limit time.Duration) time.Duration {
	switch r.n(8) {
	case 0:
		return r.span(0, limit)
	case 1, 2:
		return r.span(0, limit/10+1)
	default:
		return r.span(0, limit/100+1)
	}
}
