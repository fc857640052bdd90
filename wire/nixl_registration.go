package wire

import (
	"bytes"
)

// MemKind is where a NIXL region lies.
type MemKind uint8

const (
	VRAM MemKind = iota // default
	DRAM
)

func (k MemKind) String() string {
	if k == DRAM {
		return "DRAM"
	}
	return "VRAM"
}

// NixlRegistration introduces a decode rank to a prefill rank, once per pair: where its memory is.
//
// Frames: NixlMsgGuard, None, ip, port, agent, agent metadata, KV pointers, aux pointers, state pointers, gpu id, attention TP size, engine
// rank, KV item length, state item lengths, state dims, staging base, staging size, slots, memory kinds, KV item lengths, state layer ids,
// KV layer ids, DCP size, DCP rank, state region lengths. A reader takes those behind the KV item length as empty when they are missing.
type NixlRegistration struct {
	Addr            Addr
	Agent           string
	AgentMetadata   []byte // opaque
	KVPointers      []uint64
	AuxPointers     []uint64
	StatePointers   [][]uint64
	GPU             int
	TPSize          int // attention TP
	Rank            int // engine rank, which may be beyond TPSize
	KVItemLen       uint64
	StateItemLens   [][]uint32
	StateDims       [][]uint32
	StagingBase     uint64 // StagingBase and StagingSize 0: no staging
	StagingSize     uint64
	Slots           int       // pages of a region; 0: not told
	MemKinds        []MemKind // one per pointer; empty: all VRAM
	KVItemLens      []uint64  // one per pointer; empty: all are KVItemLen
	StateLayerIDs   [][]uint32
	KVLayerIDs      []uint32
	DCPSize         int // read as 1 when not told, written as 1 when below
	DCPRank         int // below DCPSize
	StateRegionLens [][]uint64
}

// ParseNixlRegistration reads a registration. Refused although SGLang takes it: a DCP rank outside of the DCP size.
func ParseNixlRegistration(frames [][]byte) (NixlRegistration, error) {
	r := newReader("nixl registration", frames)
	r.guard(nixlGuard)
	m := readNixlRegistration(&r)
	if r.err != nil {
		return NixlRegistration{}, r.err
	}
	return m, nil
}

func readNixlRegistration(r *reader) (m NixlRegistration) {
	if !r.tag(registrationTag, 12) {
		return m
	}
	m.Addr = r.addr(1)
	m.Agent = r.name(3, "agent")
	m.AgentMetadata = r.blob(4, "agent metadata", MaxAgentMetadata)
	m.KVPointers = readList[uint64](r, 5, "KV pointers", MaxPointers)
	m.AuxPointers = readList[uint64](r, 6, "aux pointers", MaxPointers)
	m.StatePointers = readLists[uint64](r, 7, "state pointers", MaxStateLists, MaxPointers)
	m.GPU = int(r.uint(8, "gpu id", 0, MaxRank))
	m.TPSize = int(r.uint(9, "attention TP size", 1, MaxRanks))
	m.Rank = r.rank(10, "engine rank")
	m.KVItemLen = r.uint(11, "KV item length", 0, MaxItemLen)
	m.StateItemLens = readLists[uint32](r, 12, "state item lengths", MaxStateLists, MaxPointers)
	m.StateDims = readLists[uint32](r, 13, "state dims", MaxStateLists, MaxPointers)
	if base := readList[uint64](r, 14, "staging base", 1); len(base) == 1 {
		m.StagingBase = base[0]
	}
	m.StagingSize = r.uintOr(15, "staging size", 0, 0, MaxStaging)
	m.Slots = int(r.uintOr(16, "slots", 0, 0, MaxPage))
	m.MemKinds = r.memKinds(17, len(m.KVPointers))
	m.KVItemLens = r.itemLens(18, len(m.KVPointers))
	m.StateLayerIDs = readLists[uint32](r, 19, "state layer ids", MaxStateLists, MaxPointers)
	m.KVLayerIDs = readList[uint32](r, 20, "KV layer ids", MaxPointers)
	m.DCPSize, m.DCPRank = r.dcp(21)
	m.StateRegionLens = readLists[uint64](r, 23, "state region lengths", MaxStateLists, MaxPointers)
	return m
}

// memKinds reads the kinds of n regions, separated by commas; none: not told.
func (r *reader) memKinds(i, n int) []MemKind {
	b := r.at(i)
	if r.err != nil || len(b) == 0 {
		return nil
	}
	if have := bytes.Count(b, []byte{','}) + 1; have != n {
		r.fail(i, "memory kinds", ErrRange, "%d kinds, want %d, one per KV pointer", have, n)
		return nil
	}
	kinds := make([]MemKind, n)
	for k := range kinds {
		kind, rest, _ := bytes.Cut(b, []byte{','})
		switch b = rest; string(kind) {
		case "VRAM":
		case "DRAM":
			kinds[k] = DRAM
		default:
			r.fail(i, "memory kinds", ErrRange, "%s, want VRAM or DRAM", shown(kind))
			return nil
		}
	}
	return kinds
}

// AppendTo implements Message.
func (m NixlRegistration) AppendTo(w *Writer) {
	w.text(nixlGuard)
	w.text(registrationTag)
	w.addr(m.Addr)
	w.text(m.Agent)
	w.bytes(m.AgentMetadata)
	writeList(w, m.KVPointers)
	writeList(w, m.AuxPointers)
	writeLists(w, m.StatePointers)
	w.uint(uint64(m.GPU))
	w.uint(uint64(m.TPSize))
	w.uint(uint64(m.Rank))
	w.uint(m.KVItemLen)
	writeLists(w, m.StateItemLens)
	writeLists(w, m.StateDims)
	w.staging(m.StagingBase, m.StagingSize)
	if m.Slots > 0 {
		w.uint(uint64(m.Slots))
	} else {
		w.empty()
	}
	n := len(w.buf)
	for i, k := range m.MemKinds {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.buf = append(w.buf, k.String()...)
	}
	w.end(n)
	writeList(w, m.KVItemLens)
	writeLists(w, m.StateLayerIDs)
	writeList(w, m.KVLayerIDs)
	w.uint(uint64(max(m.DCPSize, 1)))
	w.uint(uint64(m.DCPRank))
	writeLists(w, m.StateRegionLens)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NixlRegistration) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 512+len(m.AgentMetadata)+16*len(m.KVPointers))
	m.AppendTo(&w)
	return w.frames
}
