package wire

// registrationTag is frame 0 of a registration in every dialect, where metadata has its room.
const registrationTag = "None"

// MooncakeRegistration introduces a decode rank to a prefill rank, once per pair: where its memory is.
//
// Frames: None, ip, port, session, KV pointers, aux pointers, state pointers, engine rank, attention TP size, KV item length, state item
// lengths, state dims, KV layer ids, state layer ids, staging base, staging size, DCP size, DCP rank, staging slot layer ids, KV item
// lengths; between kvferry peers, frame 20: the native geometry. A reader takes frames from 10 on as empty when they are missing.
type MooncakeRegistration struct {
	Addr          Addr   // the decode rank's control socket
	Session       string // names its memory: ip:rpc_port
	KVPointers    []uint64
	AuxPointers   []uint64
	StatePointers [][]uint64 // per component
	Rank          int        // engine rank, which may be beyond TPSize
	TPSize        int        // attention TP
	KVItemLen     uint64     // bytes of a page in the first region; 0: no regions
	StateItemLens [][]uint32 // bytes
	StateDims     [][]uint32
	KVLayerIDs    []uint32   // one per region; empty: regions pair by position
	StateLayerIDs [][]uint32 // per component
	StagingBase   uint64     // StagingBase and StagingSize 0: no staging
	StagingSize   uint64     // bytes
	DCPSize       int        // decode context parallelism; read as 1 when not told, written as 1 when below
	DCPRank       int        // below DCPSize
	SlotLayerIDs  []uint64   // layers of a staging slot
	KVItemLens    []uint64   // bytes per region; empty: all are KVItemLen
	Geometry      []byte     // native peers only: JSON, opaque here, at most MaxBlob; never set it for a foreign peer
}

// HasStaging reports whether the rank has a staging ring.
func (m MooncakeRegistration) HasStaging() bool { return m.StagingBase != 0 && m.StagingSize != 0 }

// ParseMooncakeRegistration reads a registration from any peer; Geometry stays empty, since a foreign peer's frame 20 would be something
// else. Refused although SGLang takes it: a DCP rank outside of the DCP size, and item lengths that are not one per pointer.
func ParseMooncakeRegistration(frames [][]byte) (MooncakeRegistration, error) {
	r := newReader("mooncake registration", frames)
	m := readMooncakeRegistration(&r)
	if r.err != nil {
		return MooncakeRegistration{}, r.err
	}
	return m, nil
}

// ParseNativeMooncakeRegistration is ParseMooncakeRegistration for a peer known to be a kvferry one.
func ParseNativeMooncakeRegistration(frames [][]byte) (MooncakeRegistration, error) {
	r := newReader("mooncake registration", frames)
	m := readMooncakeRegistration(&r)
	m.Geometry = r.blob(20, "native geometry", MaxBlob)
	if r.err != nil {
		return MooncakeRegistration{}, r.err
	}
	return m, nil
}

func readMooncakeRegistration(r *reader) (m MooncakeRegistration) {
	if !r.tag(registrationTag, 10) {
		return m
	}
	m.Addr = r.addr(1)
	m.Session = r.name(3, "session")
	m.KVPointers = readList[uint64](r, 4, "KV pointers", MaxPointers)
	m.AuxPointers = readList[uint64](r, 5, "aux pointers", MaxPointers)
	m.StatePointers = readLists[uint64](r, 6, "state pointers", MaxStateLists, MaxPointers)
	m.Rank = r.rank(7, "engine rank")
	m.TPSize = int(r.uint(8, "attention TP size", 1, MaxRanks))
	m.KVItemLen = r.uint(9, "KV item length", 0, MaxItemLen)
	m.StateItemLens = readLists[uint32](r, 10, "state item lengths", MaxStateLists, MaxPointers)
	m.StateDims = readLists[uint32](r, 11, "state dims", MaxStateLists, MaxPointers)
	m.KVLayerIDs = readList[uint32](r, 12, "KV layer ids", MaxPointers)
	m.StateLayerIDs = readLists[uint32](r, 13, "state layer ids", MaxStateLists, MaxPointers)
	if base := readList[uint64](r, 14, "staging base", 1); len(base) == 1 {
		m.StagingBase = base[0]
	}
	m.StagingSize = r.uintOr(15, "staging size", 0, 0, MaxStaging)
	m.DCPSize, m.DCPRank = r.dcp(16)
	m.SlotLayerIDs = readList[uint64](r, 18, "staging slot layer ids", MaxPointers)
	m.KVItemLens = r.itemLens(19, len(m.KVPointers))
	return m
}

// dcp reads the two frames of decode context parallelism.
func (r *reader) dcp(i int) (size, rank int) {
	size = int(r.uintOr(i, "DCP size", 1, 1, MaxRanks))
	return size, int(r.uintOr(i+1, "DCP rank", 0, 0, uint64(max(size, 1)-1)))
}

// itemLens reads the bytes of a page in each of n regions; none: not told.
func (r *reader) itemLens(i, n int) []uint64 {
	lens := readList[uint64](r, i, "KV item lengths", MaxPointers)
	if len(lens) > 0 && len(lens) != n {
		r.fail(i, "KV item lengths", ErrRange, "%d numbers, want %d, one per KV pointer", len(lens), n)
		return nil
	}
	for k, v := range lens {
		if v == 0 || v > MaxItemLen {
			r.fail(i, "KV item lengths", ErrRange, "%d bytes at position %d, want 1 to %d", v, k, uint64(MaxItemLen))
			return nil
		}
	}
	return lens
}

// AppendTo implements Message.
func (m MooncakeRegistration) AppendTo(w *Writer) {
	w.text(registrationTag)
	w.addr(m.Addr)
	w.text(m.Session)
	writeList(w, m.KVPointers)
	writeList(w, m.AuxPointers)
	writeLists(w, m.StatePointers)
	w.uint(uint64(m.Rank))
	w.uint(uint64(m.TPSize))
	w.uint(m.KVItemLen)
	writeLists(w, m.StateItemLens)
	writeLists(w, m.StateDims)
	writeList(w, m.KVLayerIDs)
	writeLists(w, m.StateLayerIDs)
	w.staging(m.StagingBase, m.StagingSize)
	w.uint(uint64(max(m.DCPSize, 1)))
	w.uint(uint64(m.DCPRank))
	writeList(w, m.SlotLayerIDs)
	writeList(w, m.KVItemLens)
	if len(m.Geometry) > 0 {
		w.bytes(m.Geometry)
	}
}

// staging writes two frames: base as u64, size as text; both empty without staging.
func (w *Writer) staging(base, size uint64) {
	if base == 0 && size == 0 {
		w.empty()
		w.empty()
		return
	}
	writeList(w, []uint64{base})
	w.uint(size)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m MooncakeRegistration) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 512+8*(len(m.KVPointers)+len(m.KVItemLens))+len(m.Geometry))
	m.AppendTo(&w)
	return w.frames
}
