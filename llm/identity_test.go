package llm_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/model"
)

const pages = 96

var bundled = func() *llm.Model {
	m, err := model.Bundled()
	if err != nil {
		panic(err)
	}
	return m
}()

// rig is an instance with memory, and a random page table on each rank.
type rig struct {
	in     *llm.Instance
	geo    llm.Geometry
	mem    [][][]byte
	tables [][]int32
}

func newRig(t testing.TB, geo llm.Geometry, rng *rand.Rand) *rig {
	r := &rig{geo: geo}
	c := bundled.Config()
	for rank := range geo.Ranks() {
		start, end := llm.Stage(c.Layers, geo.PP, rank/geo.TP)
		var regions [][]byte
		for range 2 * (end - start) {
			regions = append(regions, make([]byte, pages*geo.ItemLen(c)))
		}
		r.mem = append(r.mem, regions)
		var table []int32
		for _, p := range rng.Perm(pages) {
			table = append(table, int32(p))
		}
		r.tables = append(r.tables, table)
	}
	var err error
	if r.in, err = llm.NewInstance(bundled, geo, r.mem); err != nil {
		t.Fatal(err)
	}
	return r
}

// prefill computes tokens [from, to) in chunks and returns the last logits.
func (r *rig) prefill(t testing.TB, ids []int32, chunk int) []float32 {
	var last []float32
	for from := 0; from < len(ids); from += chunk {
		to := min(from+chunk, len(ids))
		out, err := r.in.Step(t.Context(), []llm.Seq{{Tokens: ids[from:to], Pos: from, Pages: r.tables, Logits: to == len(ids)}})
		if err != nil {
			t.Fatal(err)
		}
		last = out[0]
	}
	return last
}

// run prefills and decodes three tokens, greedily; all logits of it.
func (r *rig) run(t testing.TB, ids []int32, chunk int) []float32 {
	last := r.prefill(t, ids, chunk)
	all := slices.Clone(last)
	for pos := len(ids); pos < len(ids)+3; pos++ {
		out, err := r.in.Step(t.Context(), []llm.Seq{{Tokens: []int32{llm.Sampler{}.Sample(last, pos)}, Pos: pos, Pages: r.tables, Logits: true}})
		if err != nil {
			t.Fatal(err)
		}
		last = out[0]
		all = append(all, last...)
	}
	return all
}

func equal(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

const prompt = "Package http provides HTTP client and server implementations. Get, Head, Post, and PostForm make HTTP (or HTTPS) requests. " +
	"The caller must close the response body when finished with it. For control over HTTP client headers, redirect policy, and other settings, create a Client."

// The whole matrix runs without the race detector; under it a part of the matrix is enough, since the detector looks for races, not for bits.
func TestBitIdentity(t *testing.T) {
	ids := bundled.Tokenizer().Encode(prompt)
	rng := rand.New(rand.NewPCG(1, 2))
	want := newRig(t, llm.Geometry{TP: 1, PP: 1, PageSize: 16}, rng).run(t, ids, len(ids))
	n := 0
	for _, tp := range []int{1, 2, 4} {
		for _, pp := range []int{1, 2, 3} {
			for _, chunk := range []int{7, 32, 512} {
				for _, size := range []int{16, 5} {
					if raceDetector && (tp != 2 || pp != 3 || size != 16) {
						continue
					}
					n++
					r := newRig(t, llm.Geometry{TP: tp, PP: pp, PageSize: size}, rng)
					if !equal(r.run(t, ids, chunk), want) {
						t.Errorf("TP %d PP %d chunk %d page size %d: logits differ", tp, pp, chunk, size)
					}
				}
			}
		}
	}
	t.Logf("%d shapes of %d prompt tokens and 3 decoded ones compared (race detector: %v)", n, len(ids), raceDetector)
}

// Whatever else is in a batch does not change a sequence's logits.
func TestBitIdentityInABatch(t *testing.T) {
	tok := bundled.Tokenizer()
	rng := rand.New(rand.NewPCG(3, 4))
	a, b := tok.Encode("Reader is the interface that wraps"), tok.Encode("Errorf formats according to a format specifier and returns")
	alone := newRig(t, llm.Geometry{TP: 1, PP: 1, PageSize: 16}, rng)
	wantA := alone.prefill(t, a, 100)
	wantB := newRig(t, llm.Geometry{TP: 1, PP: 1, PageSize: 16}, rng).prefill(t, b, 100)
	both := newRig(t, llm.Geometry{TP: 2, PP: 2, PageSize: 16}, rng)
	ta, tb := make([][]int32, 4), make([][]int32, 4)
	for i, table := range both.tables {
		ta[i], tb[i] = table[:8], table[8:16]
	}
	if _, err := both.in.Step(t.Context(), []llm.Seq{{Tokens: a[:3], Pages: ta}}); err != nil {
		t.Fatal(err)
	}
	out, err := both.in.Step(t.Context(), []llm.Seq{{Tokens: b, Pages: tb, Logits: true}, {Tokens: a[3:], Pos: 3, Pages: ta, Logits: true}})
	if err != nil {
		t.Fatal(err)
	}
	if !equal(out[0], wantB) || !equal(out[1], wantA) {
		t.Error("logits depend on the rest of the batch")
	}
}

// The control: whichever fragment of the KV is dropped, and whichever has the sign of one number turned, the next token's logits change.
func TestBitIdentityNeedsEveryFragment(t *testing.T) {
	ids := bundled.Tokenizer().Encode(prompt)
	c := bundled.Config()
	geo := llm.Geometry{TP: 2, PP: 2, PageSize: 16}
	r := newRig(t, geo, rand.New(rand.NewPCG(5, 6)))
	n := len(ids) - 1
	r.prefill(t, ids[:n], 512)
	next := func() []float32 {
		out, err := r.in.Step(t.Context(), []llm.Seq{{Tokens: ids[n:], Pos: n, Pages: r.tables, Logits: true}})
		if err != nil {
			t.Fatal(err)
		}
		return out[0]
	}
	want := next()
	if !equal(next(), want) {
		t.Fatal("the same step twice gives two answers")
	}
	head := geo.PageSize * c.HeadDim * 4
	checked := 0
	for rank, regions := range r.mem {
		for region, b := range regions {
			for i := range n / geo.PageSize { // whole pages
				for h := range c.KVHeads / geo.TP {
					if raceDetector && (i+h+region)%5 != 0 {
						continue
					}
					at := int(r.tables[rank][i])*geo.ItemLen(c) + h*head
					kept := slices.Clone(b[at : at+head])
					clear(b[at : at+head])
					if equal(next(), want) {
						t.Errorf("rank %d region %d page %d head %d: dropping it changes nothing", rank, region, i, h)
					}
					copy(b[at:], kept)
					sign := at + 4*(checked%c.HeadDim) + 3 // of a number of the page's first token
					b[sign] ^= 0x80
					if equal(next(), want) {
						t.Errorf("rank %d region %d page %d head %d: turning byte %d changes nothing", rank, region, i, h, sign)
					}
					b[sign] ^= 0x80
					checked++
				}
			}
		}
	}
	if !equal(next(), want) {
		t.Error("putting the fragments back does not give the logits back")
	}
	t.Logf("%d fragments dropped and %[1]d damaged, one at a time", checked)
}

// BenchmarkPrefill and BenchmarkDecode report tokens a second and two ratios to limits that are measured in the same run. ratio_dot: the time
// that the multiplications of the weights would take in dot on numbers that are in the first-level cache, with nothing else to do. ratio_read: the time that reading the weights once would take.
func BenchmarkPrefill(b *testing.B) { bench(b, 256) }
func BenchmarkDecode(b *testing.B)  { bench(b, 1) }

func bench(b *testing.B, n int) {
	c := bundled.Config()
	r := newRig(b, llm.Geometry{TP: 1, PP: 1, PageSize: 16}, rand.New(rand.NewPCG(1, 1)))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(1 + i%(c.Vocab-1))
	}
	pos := 0
	if n == 1 {
		pos = 128
	}
	for b.Loop() {
		if _, err := r.in.Step(b.Context(), []llm.Seq{{Tokens: ids, Pos: pos, Pages: r.tables, Logits: true}}); err != nil {
			b.Fatal(err)
		}
	}
	perToken := b.Elapsed().Seconds() / float64(b.N) / float64(n)
	weights := float64(c.Layers) * float64(c.Dim*c.Dim*2+c.Dim*c.KVHeads*c.HeadDim*2+3*c.Dim*c.FFN)
	if n == 1 {
		weights += float64(c.Vocab * c.Dim)
	}
	b.ReportMetric(1/perToken, "tokens/s")
	b.ReportMetric(llm.DotSeconds(weights)/perToken, "ratio_dot")
	b.ReportMetric(llm.ReadSeconds(int(4*weights))/(perToken*float64(n)), "ratio_read")
}

func ExampleSampler() {
	logits := []float32{1, 2, 3}
	here, there := llm.Sampler{Seed: 7, Temperature: 1}, llm.Sampler{Seed: 7, Temperature: 1}
	fmt.Println(here.Sample(logits, 5) == there.Sample(logits, 5), llm.Sampler{}.Sample(logits, 5))
	// Output: true 2
}
