package wire

// MoriRegistration introduces a decode rank to a prefill rank, once per pair: where its memory is.
//
// Frames: MoriMsgGuard, None, ip, port, engine descriptor, KV memory descriptors, aux memory descriptors, state memory descriptors (three
// msgpack lists), gpu id, attention TP size, engine rank, KV item length, state item lengths, state dims, DCP size, DCP rank, state layer
// ids, KV layer ids. A reader takes those behind the KV item length as empty when they are missing.
type MoriRegistration struct {
	Addr          Addr
	Engine        []byte     // packed descriptor, opaque
	KVDescs       [][]byte   // packed memory descriptors, opaque
	AuxDescs      [][]byte   // likewise
	StateDescs    [][][]byte // per component; nil: elided
	GPU           int
	TPSize        int // attention TP
	Rank          int // engine rank, which may be beyond TPSize
	KVItemLen     uint64
	StateItemLens [][]uint32
	StateDims     [][]uint32
	DCPSize       int // read as 1 when not told, written as 1 when below
	DCPRank       int // below DCPSize
	StateLayerIDs [][]uint32
	KVLayerIDs    []uint32
}

// ParseMoriRegistration reads a registration. Refused although SGLang takes it: a DCP rank outside of the DCP size.
func ParseMoriRegistration(frames [][]byte) (MoriRegistration, error) {
	r := newReader("mori registration", frames)
	r.guard(moriGuard)
	m := readMoriRegistration(&r)
	if r.err != nil {
		return MoriRegistration{}, r.err
	}
	return m, nil
}

func readMoriRegistration(r *reader) (m MoriRegistration) {
	if !r.tag(registrationTag, 11) {
		return m
	}
	m.Addr = r.addr(1)
	m.Engine = r.blob(3, "engine descriptor", MaxBlob)
	m.KVDescs = r.descs(4, "KV memory descriptors")
	m.AuxDescs = r.descs(5, "aux memory descriptors")
	m.StateDescs = r.stateDescs(6, "state memory descriptors")
	m.GPU = int(r.uint(7, "gpu id", 0, MaxRank))
	m.TPSize = int(r.uint(8, "attention TP size", 1, MaxRanks))
	m.Rank = r.rank(9, "engine rank")
	m.KVItemLen = r.uint(10, "KV item length", 0, MaxItemLen)
	m.StateItemLens = readLists[uint32](r, 11, "state item lengths", MaxStateLists, MaxPointers)
	m.StateDims = readLists[uint32](r, 12, "state dims", MaxStateLists, MaxPointers)
	m.DCPSize, m.DCPRank = r.dcp(13)
	m.StateLayerIDs = readLists[uint32](r, 15, "state layer ids", MaxStateLists, MaxPointers)
	m.KVLayerIDs = readList[uint32](r, 16, "KV layer ids", MaxPointers)
	return m
}

// AppendTo implements Message. Lists of descriptors are written as msgpack even when they are empty.
func (m MoriRegistration) AppendTo(w *Writer) {
	w.text(moriGuard)
	w.text(registrationTag)
	w.addr(m.Addr)
	w.bytes(m.Engine)
	for _, descs := range [][][]byte{m.KVDescs, m.AuxDescs} {
		n := len(w.buf)
		w.buf = appendMsgpackBins(w.buf, descs)
		w.end(n)
	}
	n := len(w.buf)
	w.buf = appendMsgpackArray(w.buf, len(m.StateDescs))
	for _, descs := range m.StateDescs {
		w.buf = appendMsgpackBins(w.buf, descs)
	}
	w.end(n)
	w.uint(uint64(m.GPU))
	w.uint(uint64(m.TPSize))
	w.uint(uint64(m.Rank))
	w.uint(m.KVItemLen)
	writeLists(w, m.StateItemLens)
	writeLists(w, m.StateDims)
	w.uint(uint64(max(m.DCPSize, 1)))
	w.uint(uint64(m.DCPRank))
	writeLists(w, m.StateLayerIDs)
	writeList(w, m.KVLayerIDs)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m MoriRegistration) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 1024)
	m.AppendTo(&w)
	return w.frames
}
