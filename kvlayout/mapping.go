package kvlayout

import (
	"fmt"
	"strconv"
)

// MaxRanks bounds each axis of a topology, far beyond any instance: what a peer claims bounds the lists made from it.
const MaxRanks = 4096

// Topology is how one instance (one data-parallel replica of it) is cut into ranks: attention TP, attention CP and PP sizes, each at
// least 1.
type Topology struct {
	TP int `json:"tp"`
	CP int `json:"cp"`
	PP int `json:"pp"`
}

// Rank is one rank of a topology, each part below the size of its axis.
type Rank struct {
	TP int `json:"tp"`
	CP int `json:"cp"`
	PP int `json:"pp"`
}

func (t Topology) String() string { return fmt.Sprintf("TP %d CP %d PP %d", t.TP, t.CP, t.PP) }

// Size is the number of ranks.
func (t Topology) Size() int { return t.TP * t.CP * t.PP }

// Validate refuses sizes outside of 1 … MaxRanks.
func (t Topology) Validate() error {
	for _, axis := range []struct {
		name string
		n    int
	}{{"TP", t.TP}, {"CP", t.CP}, {"PP", t.PP}} {
		if axis.n < 1 || axis.n > MaxRanks {
			return fmt.Errorf("%w: %s size %d, want 1 to %d", ErrGeometry, axis.name, axis.n, MaxRanks)
		}
	}
	return nil
}

// Unique is the number by which rank r of a prefill instance names itself in its messages (SGLang's prefill unique rank).
func (t Topology) Unique(r Rank) int { return r.TP*(t.PP*t.CP) + r.PP*t.CP + r.CP }

// Rank is the rank whose Unique number is n; ok is false if there is none.
func (t Topology) Rank(n int) (r Rank, ok bool) {
	if n < 0 || n >= t.Size() {
		return Rank{}, false
	}
	return Rank{TP: n / (t.PP * t.CP), PP: n / t.CP % t.PP, CP: n % t.CP}, true
}

// Pairing is what decides, beside the two topologies, who talks to whom. Hybrid models with some latent layers are not MLA.
type Pairing struct {
	MLA        bool // every layer has latent attention: TP ranks hold the same KV
	KVSharding bool // prefill spreads the pages of its KV over its CP ranks, or with MLA and CP 1 over its TP ranks
	LayerSplit bool // prefill spreads layers over its CP ranks
	AllCP      bool // decode takes from all CP ranks of prefill, not from rank 0 alone

	// Layers is the number of layers of the model when both peers cut them into stages by Stage, as kvferry instances do; any two PP sizes
	// can be paired then. 0: unknown, as with SGLang, where decode's PP is prefill's or 1.
	Layers int
}

// Target is a prefill rank that a decode rank sends its metadata to.
type Target struct {
	Rank
	Unique   int  // its number in status messages
	Dummy    bool // it gets metadata without pages and never answers
	DstInfos int  // how many decode ranks it has to hear from before it sends (SGLang's required_dst_info_num)
}

// Mapping is whom one decode rank talks to.
type Mapping struct {
	TP, CP, PP []int    // target ranks of each axis, ascending
	Targets    []Target // all combinations; the last stage first, as SGLang's decode asks for them
	Responses  int      // Success answers to wait for (SGLang's required_prefill_response_num): one from each target that is no dummy
}

// Ranks returns whom decode rank dRank of topology d talks to in prefill topology p. dRank.TP may be an engine rank beyond d.TP, as SGLang
// sends it; it counts modulo d.TP.
//
// Refused with ErrIncompatible, naming both values: TP sizes of which neither divides the other (SGLang pairs them and never serves some
// ranks), a decode CP above 1, PP sizes that differ unless decode's is 1 or pairing.Layers is set, and MLA KV sharded over unequal TP.
func Ranks(p, d Topology, dRank Rank, pairing Pairing) (Mapping, error) {
	for _, t := range []Topology{p, d} {
		if err := t.Validate(); err != nil {
			return Mapping{}, err
		}
	}
	if dRank.TP < 0 || dRank.PP < 0 || dRank.PP >= d.PP {
		return Mapping{}, fmt.Errorf("%w: decode rank TP %d PP %d, want not negative and PP below %d", ErrGeometry, dRank.TP, dRank.PP, d.PP)
	}
	if d.CP != 1 {
		return Mapping{}, incompatible("CP (decode's must be 1)", p.CP, d.CP)
	}
	if !divides(p.TP, d.TP) {
		return Mapping{}, incompatible("TP (one must divide the other)", p.TP, d.TP)
	}
	return mapRanks(p, d, dRank, pairing)
}

// mapRanks is SGLang's rule, TP sizes of which neither divides the other included.
func mapRanks(p, d Topology, dRank Rank, pairing Pairing) (Mapping, error) {
	m := Mapping{CP: []int{0}}
	real, infos, err := m.mapTP(p.TP, d.TP, dRank.TP%d.TP, pairing.MLA && pairing.KVSharding && p.CP == 1, pairing.MLA)
	if err != nil {
		return Mapping{}, err
	}
	if pairing.AllCP || pairing.LayerSplit || pairing.KVSharding {
		m.CP = ascending(0, p.CP)
	}
	stages, err := m.mapPP(p.PP, d.PP, dRank.PP, pairing.Layers)
	if err != nil {
		return Mapping{}, err
	}
	m.Targets = make([]Target, 0, len(m.TP)*len(m.CP)*len(m.PP))
	for _, cp := range m.CP {
		for i, tp := range m.TP {
			for j := len(m.PP) - 1; j >= 0; j-- {
				r := Rank{TP: tp, CP: cp, PP: m.PP[j]}
				t := Target{Rank: r, Unique: p.Unique(r), Dummy: i >= real, DstInfos: infos * stages[j]}
				m.Targets = append(m.Targets, t)
				if !t.Dummy {
					m.Responses++
				}
			}
		}
	}
	return m, nil
}

// mapTP sets m.TP; the first real of them are no dummies, and infos is how many decode TP ranks each of them serves.
func (m *Mapping) mapTP(p, d, rank int, sharded, mla bool) (real, infos int, err error) {
	switch {
	case sharded && p != d:
		return 0, 0, incompatible("TP of sharded MLA KV", p, d)
	case sharded:
		m.TP = ascending(0, p)
		return p, d, nil
	case d >= p:
		k := d / p
		m.TP = []int{rank / k}
		return 1, k, nil
	}
	k := p / d
	m.TP = ascending(rank*k, rank*k+k)
	if mla {
		return 1, 1, nil // replicas: the first is the source
	}
	return k, 1, nil
}

// mapPP sets m.PP to the stages that share layers with decode's stage rank; stages[i] is how many of decode's stages m.PP[i] shares layers
// with.
func (m *Mapping) mapPP(p, d, rank, layers int) (stages []int, err error) {
	switch {
	case p == d:
		m.PP = []int{rank}
	case d == 1:
		m.PP = ascending(0, p)
	case layers == 0:
		return nil, incompatible("PP (decode's must be prefill's, or 1)", p, d)
	case layers < p || layers < d:
		return nil, incompatible("PP of a model of "+strconv.Itoa(layers)+" layers", p, d)
	default:
		for s := range p {
			if overlap(layers, p, s, d, rank) {
				m.PP = append(m.PP, s)
			}
		}
	}
	for _, s := range m.PP {
		n := 0
		for r := range d {
			if p == d && r == s || p != d && (d == 1 || overlap(layers, p, s, d, r)) {
				n++
			}
		}
		stages = append(stages, n)
	}
	return stages, nil
}

func overlap(layers, p, s, d, r int) bool {
	ps, pe := Stage(layers, p, s)
	ds, de := Stage(layers, d, r)
	return max(ps, ds) < min(pe, de)
}

// Stage returns the layers [start, end) of one of size pipeline ranks; the last ranks get the layers left over, as in SGLang 0.5.23 without
// a partition list of the operator's.
func Stage(layers, size, rank int) (start, end int) {
	base, rest := layers/size, layers%size
	extra := func(r int) int { return max(0, r-(size-rest)) }
	return rank*base + extra(rank), (rank+1)*base + extra(rank+1)
}

func divides(a, b int) bool { return a%b == 0 || b%a == 0 }

func ascending(from, to int) []int {
	s := make([]int, 0, to-from)
	for i := from; i < to; i++ {
		s = append(s, i)
	}
	return s
}
