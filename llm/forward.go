package llm

import "math"

// step is the memory of one step. Rows are tokens, in the order of the sequences; columns of q, att, k, v and gate, up are those of the whole
// model, of which each rank computes and reads only its own.
type step struct {
	in   *Instance
	seqs []Seq
	seq  []int // by token: its sequence
	pos  []int
	n    int

	x, h     []float32   // n × Dim
	rope     []float32   // n × HeadDim: cosine and sine of each pair
	q, att   []float32   // n × Heads×HeadDim
	k, v     []float32   // n × KVHeads×HeadDim
	gate, up []float32   // n × FFN
	parts    [][]float32 // by KV-head group: n × Dim, what the ranks hand in to an all-reduce
}

func newStep(in *Instance, seqs []Seq, n int) *step {
	c := in.m.cfg
	rows := func(width int) []float32 { return make([]float32, n*width) }
	st := &step{in: in, seqs: seqs, n: n, x: rows(c.Dim), h: rows(c.Dim), rope: rows(c.HeadDim), q: rows(c.Heads * c.HeadDim), att: rows(c.Heads * c.HeadDim),
		k: rows(c.KVHeads * c.HeadDim), v: rows(c.KVHeads * c.HeadDim), gate: rows(c.FFN), up: rows(c.FFN)}
	for range c.KVHeads {
		st.parts = append(st.parts, rows(c.Dim))
	}
	buf := make([]float32, in.m.embed.buffer())
	for i, s := range seqs {
		for j, id := range s.Tokens {
			t := len(st.seq)
			copy(st.x[t*c.Dim:], in.m.embed.view(buf, int(id)))
			st.seq, st.pos = append(st.seq, i), append(st.pos, s.Pos+j)
			for p, freq := range in.freq {
				s, co := sincos(float64(st.pos[t]) * freq)
				at := t*c.HeadDim + 2*p
				st.rope[at], st.rope[at+1] = float32(co), float32(s)
			}
		}
	}
	return st
}

// norm is RMSNorm of x into h.
func (st *step) norm(h, x, weight []float32) {
	scale := 1 / float32(math.Sqrt(float64(float32(dot(x, x)/float32(len(x)))+st.in.m.cfg.Eps)))
	for i := range x {
		h[i] = float32(x[i]*scale) * weight[i]
	}
}

// Tokens and heads of a piece of the work between multiplications.
const (
	pieceTokens = 8
	pieceHeads  = 4
)

// tokens runs f for every token, several at a time.
func (st *step) tokens(f func(t int)) {
	parallel(st.n, pieceTokens, func(from, to int) {
		for t := from; t < to; t++ {
			f(t)
		}
	})
}

// layer runs one layer on the ranks that hold it: attention over the pages, then the feed-forward network.
func (st *step) layer(ranks []*rank, l int) {
	c, w := st.in.m.cfg, &st.in.m.layers[l]
	st.tokens(func(t int) { st.norm(st.row(st.h, t), st.row(st.x, t), w.attnNorm) })
	var ms []mul
	for _, r := range ranks {
		s := &r.layers[l-r.start]
		heads := c.Heads / c.KVHeads * c.HeadDim
		ms = append(ms, st.project(s.q, st.q, r.first*heads, c.Heads*c.HeadDim), st.project(s.k, st.k, r.first*c.HeadDim, c.KVHeads*c.HeadDim),
			st.project(s.v, st.v, r.first*c.HeadDim, c.KVHeads*c.HeadDim))
	}
	multiply(st.n, ms)
	st.tokens(func(t int) {
		for _, r := range ranks {
			st.store(r, l, t)
		}
	})
	parallel(st.n*c.KVHeads, pieceHeads, func(from, to int) {
		scores := make([]float32, 0, 256)
		for i := from; i < to; i++ {
			g := i % c.KVHeads
			r := ranks[g/ranks[0].groups]
			scores = st.attend(r, l, i/c.KVHeads, g, scores)
		}
	})
	st.reduce(ranks, func(r *rank) []*tensor { return r.layers[l-r.start].o }, st.att)

	st.tokens(func(t int) { st.norm(st.row(st.h, t), st.row(st.x, t), w.ffnNorm) })
	ms = ms[:0]
	for _, r := range ranks {
		s, from := &r.layers[l-r.start], r.first*c.FFN/c.KVHeads
		ms = append(ms, st.project(s.gate, st.gate, from, c.FFN), st.project(s.up, st.up, from, c.FFN))
	}
	multiply(st.n, ms)
	st.tokens(func(t int) {
		gate, up := st.gate[t*c.FFN:(t+1)*c.FFN], st.up[t*c.FFN:(t+1)*c.FFN]
		for i, g := range gate {
			gate[i] = float32(g/(1+float32(exp(float64(-g))))) * up[i]
		}
	})
	st.reduce(ranks, func(r *rank) []*tensor { return r.layers[l-r.start].down }, st.gate)
}

func (st *step) row(x []float32, t int) []float32 {
	dim := st.in.m.cfg.Dim
	return x[t*dim : (t+1)*dim]
}

// project is h times a rank's rows, into its columns of out.
func (st *step) project(w *tensor, out []float32, from, width int) mul {
	return mul{w: w, in: st.h, ldIn: st.in.m.cfg.Dim, out: out[from:], ldOut: width}
}

// reduce is the all-reduce: each rank hands in what each of its groups makes of its share of in, and x gets the sum by one tree over the
// groups of the model. So the order of additions is the same for any number of ranks.
func (st *step) reduce(ranks []*rank, of func(*rank) []*tensor, in []float32) {
	dim, width := st.in.m.cfg.Dim, len(in)/st.n
	var ms []mul
	for _, r := range ranks {
		for i, w := range of(r) {
			g := r.first + i
			ms = append(ms, mul{w: w, in: in[g*w.cols:], ldIn: width, out: st.parts[g], ldOut: dim})
		}
	}
	multiply(st.n, ms)
	st.tokens(func(t int) {
		sums := make([]float32, len(st.parts))
		x := st.row(st.x, t)
		for i := range x {
			for g, part := range st.parts {
				sums[g] = part[t*dim+i]
			}
			x[i] += tree(sums)
		}
	})
}

// rotate applies RoPE to the neighbouring pairs of one head.
func rotate(x, rope []float32) {
	for i := 0; i < len(rope); i += 2 {
		a, b, co, s := x[i], x[i+1], rope[i], rope[i+1]
		x[i] = float32(a*co) - float32(b*s)
		x[i+1] = float32(a*s) + float32(b*co)
	}
}

// store rotates a rank's heads of a token and writes its K and V to the rank's pages.
func (st *step) store(r *rank, l, t int) {
	c, size := st.in.m.cfg, st.in.geo.PageSize
	dim, per := c.HeadDim, c.Heads/c.KVHeads
	rope := st.rope[t*dim : (t+1)*dim]
	page, slot := int(st.seqs[st.seq[t]].Pages[r.index][st.pos[t]/size]), st.pos[t]%size
	keys, values := r.kv[l-r.start], r.kv[r.end-r.start+l-r.start]
	for i := range r.groups {
		g := r.first + i
		for h := g * per; h < (g+1)*per; h++ {
			rotate(st.q[(t*c.Heads+h)*dim:], rope)
		}
		from := (t*c.KVHeads + g) * dim
		rotate(st.k[from:], rope)
		at := ((page*r.groups+i)*size + slot) * dim
		copy(keys[at:at+dim], st.k[from:])
		copy(values[at:at+dim], st.v[from:])
	}
}

// attend is causal attention of one token and group: of each of its heads, softmax(q · K) · V over the positions in their order. It returns
// scores, perhaps grown, for the next call.
func (st *step) attend(r *rank, l, t, g int, scores []float32) []float32 {
	c, size := st.in.m.cfg, st.in.geo.PageSize
	dim, per := c.HeadDim, c.Heads/c.KVHeads
	table := st.seqs[st.seq[t]].Pages[r.index]
	keys, values := r.kv[l-r.start], r.kv[r.end-r.start+l-r.start]
	n := st.pos[t] + 1
	// rows is the rank's rows of this group that hold positions [from, from+size) of a region.
	rows := func(region []float32, from int) []float32 {
		at := (int(table[from/size])*r.groups + g - r.first) * size * dim
		return region[at : at+min(size, n-from)*dim]
	}
	scale := 1 / float32(math.Sqrt(float64(dim)))
	for h := g * per; h < (g+1)*per; h++ {
		at := (t*c.Heads + h) * dim
		q, out := st.q[at:at+dim], st.att[at:at+dim]
		scores = scores[:0]
		top := float32(math.Inf(-1))
		for from := 0; from < n; from += size {
			for k := rows(keys, from); len(k) > 0; k = k[dim:] {
				s := dot(q, k[:dim]) * scale
				top = max(top, s)
				scores = append(scores, s)
			}
		}
		sum := float32(0)
		for p, s := range scores {
			scores[p] = float32(exp(float64(s - top)))
			sum += scores[p]
		}
		clear(out)
		for from := 0; from < n; from += size {
			p := from
			for v := rows(values, from); len(v) > 0; v = v[dim:] {
				w := scores[p] / sum
				for i, x := range v[:dim] {
					out[i] += float32(w * x)
				}
				p++
			}
		}
	}
	return scores
}

// logits is the output of the last token of each sequence that wants it.
func (st *step) logits() [][]float32 {
	m := st.in.m
	c := m.cfg
	out := make([][]float32, len(st.seqs))
	var last, want []int
	t := -1
	for i, s := range st.seqs {
		t += len(s.Tokens)
		if s.Logits {
			last, want = append(last, t), append(want, i)
		}
	}
	h, all := make([]float32, len(last)*c.Dim), make([]float32, len(last)*c.Vocab)
	for i, t := range last {
		st.norm(h[i*c.Dim:(i+1)*c.Dim], st.row(st.x, t), m.norm)
	}
	multiply(len(last), []mul{{w: m.out, in: h, ldIn: c.Dim, out: all, ldOut: c.Vocab}})
	for i, s := range want {
		out[s] = all[i*c.Vocab : (i+1)*c.Vocab : (i+1)*c.Vocab]
	}
	return out
}
