package llm

import "math"

// step is the memory of one step. Rows are tokens, in the order of the sequences.
type step struct {
	in   *Instance
	seqs []Seq
	seq  []int // by token: its sequence
	pos  []int
	n    int

	x, h     []float32 // n × Dim
	q, att   []float32 // n × Heads×HeadDim
	k, v     []float32 // n × KVHeads×HeadDim
	gate, up []float32 // n × FFN
}

func newStep(in *Instance, seqs []Seq, n int) *step {
	c := in.m.cfg
	st := &step{in: in, seqs: seqs, n: n, x: make([]float32, n*c.Dim), h: make([]float32, n*c.Dim),
		q: make([]float32, n*c.Heads*c.HeadDim), att: make([]float32, n*c.Heads*c.HeadDim), k: make([]float32, n*c.KVHeads*c.HeadDim),
		v: make([]float32, n*c.KVHeads*c.HeadDim), gate: make([]float32, n*c.FFN), up: make([]float32, n*c.FFN)}
	for i, s := range seqs {
		for j, id := range s.Tokens {
			t := len(st.seq)
			in.m.embed.row(st.x[t*c.Dim:(t+1)*c.Dim], int(id))
			st.seq, st.pos = append(st.seq, i), append(st.pos, s.Pos+j)
		}
	}
	return st
}

// norm is RMSNorm of every row of x into h.
func (st *step) norm(weight []float32) {
	dim := len(weight)
	for t := range st.n {
		x, h := st.x[t*dim:(t+1)*dim], st.h[t*dim:(t+1)*dim]
		scale := 1 / float32(math.Sqrt(float64(float32(dot(x, x)/float32(dim))+st.in.m.cfg.Eps)))
		for i := range x {
			h[i] = float32(x[i]*scale) * weight[i]
		}
	}
}

// matmul is out[t][r] = row r of w · in[t], for every token.
func (st *step) matmul(out []float32, w *tensor, in []float32) {
	workers(w.rows, func(from, to int) {
		row := make([]float32, w.cols)
		for r := from; r < to; r++ {
			row := w.view(row, r)
			for t := range st.n {
				out[t*w.rows+r] = dot(row, in[t*w.cols:(t+1)*w.cols])
			}
		}
	})
}

// reduce adds w · in to x, each KV-head group's share of the inputs on its own and the shares by a fixed tree: what tensor-parallel ranks
// compute and add up, in the same order for any number of them.
func (st *step) reduce(w *tensor, in []float32) {
	groups := st.in.m.cfg.KVHeads
	share := w.cols / groups
	workers(w.rows, func(from, to int) {
		row, sums := make([]float32, w.cols), make([]float32, groups)
		for r := from; r < to; r++ {
			row := w.view(row, r)
			for t := range st.n {
				y := in[t*w.cols : (t+1)*w.cols]
				for g := range groups {
					sums[g] = dot(row[g*share:(g+1)*share], y[g*share:(g+1)*share])
				}
				st.x[t*w.rows+r] += tree(sums)
			}
		}
	})
}

// tree adds up the shares of the groups: the sum of the first half and the sum of the second.
func tree(s []float32) float32 {
	if len(s) == 1 {
		return s[0]
	}
	h := (len(s) + 1) / 2
	return tree(s[:h]) + tree(s[h:])
}

// layer runs one layer: attention over the pages, then the feed-forward network.
func (st *step) layer(l int) {
	w := &st.in.m.layers[l]
	st.norm(w.attnNorm)
	st.matmul(st.q, w.q, st.h)
	st.matmul(st.k, w.k, st.h)
	st.matmul(st.v, w.v, st.h)
	st.rotate()
	st.store(l)
	st.attend(l)
	st.reduce(w.o, st.att)
	st.norm(w.ffnNorm)
	st.matmul(st.gate, w.gate, st.h)
	st.matmul(st.up, w.up, st.h)
	for i, g := range st.gate {
		st.gate[i] = float32(g/(1+float32(math.Exp(float64(-g))))) * st.up[i]
	}
	st.reduce(w.down, st.gate)
}

// rotate applies RoPE to neighbouring pairs of q and k.
func (st *step) rotate() {
	c := st.in.m.cfg
	half := c.HeadDim / 2
	turn := func(v []float32, heads int) {
		for t := range st.n {
			rope := st.in.rope[st.pos[t]*half*2:]
			for h := range heads {
				x := v[(t*heads+h)*c.HeadDim:]
				for i := range half {
					a, b, co, s := x[2*i], x[2*i+1], rope[2*i], rope[2*i+1]
					x[2*i] = float32(a*co) - float32(b*s)
					x[2*i+1] = float32(a*s) + float32(b*co)
				}
			}
		}
	}
	turn(st.q, c.Heads)
	turn(st.k, c.KVHeads)
}

// place is where a layer's K and V of a KV head are: the regions of the rank that holds them, its page tables' index, and the head's number
// there.
func (st *step) place(l, kvHead int) (k, v []float32, rank, head int) {
	geo, c := st.in.geo, st.in.m.cfg
	pp := 0
	start, end := Stage(c.Layers, geo.PP, pp)
	for l >= end {
		pp++
		start, end = Stage(c.Layers, geo.PP, pp)
	}
	per := c.KVHeads / geo.TP
	rank = pp*geo.TP + kvHead/per
	kv := st.in.kv[rank]
	return kv[l-start], kv[end-start+l-start], rank, kvHead % per
}

// at is the offset of a position's row of a head in a region.
func (st *step) at(table []int32, pos, head int) int {
	geo, c := st.in.geo, st.in.m.cfg
	per := c.KVHeads / geo.TP
	return ((int(table[pos/geo.PageSize])*per+head)*geo.PageSize + pos%geo.PageSize) * c.HeadDim
}

// store writes k and v to the pages.
func (st *step) store(l int) {
	c := st.in.m.cfg
	for h := range c.KVHeads {
		k, v, rank, head := st.place(l, h)
		for t := range st.n {
			at := st.at(st.seqs[st.seq[t]].Pages[rank], st.pos[t], head)
			from := (t*c.KVHeads + h) * c.HeadDim
			copy(k[at:at+c.HeadDim], st.k[from:])
			copy(v[at:at+c.HeadDim], st.v[from:])
		}
	}
}

// attend is causal attention of every token and head over the pages.
func (st *step) attend(l int) {
	c := st.in.m.cfg
	scale := 1 / float32(math.Sqrt(float64(c.HeadDim)))
	workers(st.n*c.KVHeads, func(from, to int) {
		scores := make([]float32, c.Context)
		for i := from; i < to; i++ {
			t, kvHead := i/c.KVHeads, i%c.KVHeads
			k, v, rank, head := st.place(l, kvHead)
			table := st.seqs[st.seq[t]].Pages[rank]
			for rep := range c.Heads / c.KVHeads {
				h := kvHead*(c.Heads/c.KVHeads) + rep
				at := (t*c.Heads + h) * c.HeadDim
				st.head(st.att[at:at+c.HeadDim], st.q[at:at+c.HeadDim], k, v, table, st.pos[t], head, scale, scores)
			}
		}
	})
}

// head is softmax(q · K) · V over positions 0 to pos, in their order.
func (st *step) head(out, q, k, v []float32, table []int32, pos, head int, scale float32, scores []float32) {
	dim := len(q)
	scores = scores[:pos+1]
	top := float32(math.Inf(-1))
	for p := range scores {
		at := st.at(table, p, head)
		scores[p] = dot(q, k[at:at+dim]) * scale
		top = max(top, scores[p])
	}
	sum := float32(0)
	for p, s := range scores {
		scores[p] = float32(math.Exp(float64(s - top)))
		sum += scores[p]
	}
	clear(out)
	for p, s := range scores {
		w := s / sum
		at := st.at(table, p, head)
		for i, x := range v[at : at+dim] {
			out[i] += float32(w * x)
		}
	}
}

// logits is the output of the last token of each sequence that wants it.
func (st *step) logits() [][]float32 {
	m := st.in.m
	c := m.cfg
	st.norm(m.norm)
	out := make([][]float32, len(st.seqs))
	var rows, want []int
	t := -1
	for i, s := range st.seqs {
		t += len(s.Tokens)
		if s.Logits {
			out[i] = make([]float32, c.Vocab)
			rows, want = append(rows, t), append(want, i)
		}
	}
	if len(rows) == 0 {
		return out
	}
	workers(c.Vocab, func(from, to int) {
		row := make([]float32, c.Dim)
		for r := from; r < to; r++ {
			row := m.out.view(row, r)
			for j, t := range rows {
				out[want[j]][r] = dot(row, st.h[t*c.Dim:(t+1)*c.Dim])
			}
		}
	})
	return out
}
