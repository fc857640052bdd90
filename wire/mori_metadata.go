package wire

import "github.com/kvferry/kvferry/room"

// MoriMetadata publishes a decode rank's pages for one room to a prefill rank.
//
// Frames: MoriMsgGuard, room, ip, port, engine key, pages, aux slot (empty: none), state indices, required_dst_info_num, decode_prefix_len
// (empty unless above 0). A reader takes the last three as empty when they are missing, required_dst_info_num then as 1.
type MoriMetadata struct {
	Room         room.ID
	Addr         Addr
	EngineKey    string
	Pages        []int32 // the decode rank's page numbers for tokens [Prefix, prompt), in order; none in a dummy
	Aux          int32   // aux slot; -1: none
	StateIndices [][]int32
	Required     int // decode ranks that the prefill rank waits for, at least 1
	Prefix       int // tokens that decode holds already; a dummy with a prefix is read as no dummy
	Dummy        bool
}

// ParseMoriMetadata reads metadata. A message without pages, aux slot and prefix is a dummy; its state indices are not looked at.
func ParseMoriMetadata(frames [][]byte) (MoriMetadata, error) {
	r := newReader("mori metadata", frames)
	r.guard(moriGuard)
	if !r.need(6) {
		return MoriMetadata{}, r.err
	}
	m := MoriMetadata{
		Room:      r.room(0),
		Addr:      r.addr(1),
		EngineKey: r.name(3, "engine key"),
		Pages:     readPages(&r, 4, "pages"),
		Aux:       -1,
		Required:  1,
		Prefix:    int(r.uintOr(8, "decode_prefix_len", 0, 0, MaxTokens)),
	}
	if len(r.at(5)) > 0 {
		m.Aux = int32(r.int(5, "aux slot", -1, MaxSlot))
	}
	if len(r.frames) > 7 {
		m.Required = int(r.uint(7, "required_dst_info_num", 1, MaxRanks))
	}
	if m.Dummy = len(m.Pages) == 0 && m.Aux < 0 && m.Prefix == 0; !m.Dummy {
		m.StateIndices = readLists[int32](&r, 6, "state indices", MaxStateLists, MaxStateEntries)
	}
	if r.err != nil {
		return MoriMetadata{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m MoriMetadata) AppendTo(w *Writer) {
	w.text(moriGuard)
	w.room(m.Room)
	w.addr(m.Addr)
	w.text(m.EngineKey)
	pages, aux, state := m.Pages, m.Aux, m.StateIndices
	if m.Dummy {
		pages, aux, state = nil, -1, nil
	}
	writeList(w, pages)
	if aux >= 0 {
		w.uint(uint64(aux))
	} else {
		w.empty()
	}
	writeLists(w, state)
	w.uint(uint64(m.Required))
	if m.Prefix > 0 {
		w.uint(uint64(m.Prefix))
	} else {
		w.empty()
	}
}

// AppendFrames appends the frames of m, in memory of their own.
func (m MoriMetadata) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 256+4*len(m.Pages))
	m.AppendTo(&w)
	return w.frames
}
