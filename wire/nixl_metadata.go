package wire

import "github.com/kvferry/kvferry/room"

// NixlMetadata publishes a decode rank's pages for one room to a prefill rank.
//
// Frames: NixlMsgGuard, room, ip, port, agent, pages, aux slot, required_dst_info_num, state indices, decode_prefix_len, dummy (0 or 1). A
// reader takes the last three as empty when they are missing; without the dummy flag a message without pages and prefix is a dummy.
type NixlMetadata struct {
	Room         room.ID
	Addr         Addr
	Agent        string
	Pages        []int32 // the decode rank's page numbers for tokens [Prefix, prompt), in order; none in a dummy
	Aux          int32   // aux slot, at least 0 always: this wire has no "none"
	Required     int     // decode ranks that the prefill rank waits for, at least 1
	StateIndices [][]int32
	Prefix       int // tokens that decode holds already
	Dummy        bool
}

// ParseNixlMetadata reads metadata. Refused although SGLang takes it: a dummy with pages, a flag other than 0 and 1, an aux slot below 0.
// A dummy's state indices are not looked at.
func ParseNixlMetadata(frames [][]byte) (NixlMetadata, error) {
	r := newReader("nixl metadata", frames)
	r.guard(nixlGuard)
	if !r.need(7) {
		return NixlMetadata{}, r.err
	}
	m := NixlMetadata{
		Room:     r.room(0),
		Addr:     r.addr(1),
		Agent:    r.name(3, "agent"),
		Pages:    readPages(&r, 4, "pages"),
		Aux:      int32(r.uint(5, "aux slot", 0, MaxSlot)),
		Required: int(r.uint(6, "required_dst_info_num", 1, MaxRanks)),
		Prefix:   int(r.uintOr(8, "decode_prefix_len", 0, 0, MaxTokens)),
	}
	if flag := r.at(9); len(flag) == 0 {
		m.Dummy = len(m.Pages) == 0 && m.Prefix == 0
	} else if m.Dummy = r.uint(9, "dummy", 0, 1) == 1; m.Dummy && len(m.Pages) > 0 {
		r.fail(4, "pages", ErrRange, "%d pages in a dummy, want none", len(m.Pages))
	}
	if !m.Dummy {
		m.StateIndices = readLists[int32](&r, 7, "state indices", MaxStateLists, MaxStateEntries)
	}
	if r.err != nil {
		return NixlMetadata{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m NixlMetadata) AppendTo(w *Writer) {
	w.text(nixlGuard)
	w.room(m.Room)
	w.addr(m.Addr)
	w.text(m.Agent)
	pages, state, dummy := m.Pages, m.StateIndices, "0"
	if m.Dummy {
		pages, state, dummy = nil, nil, "1"
	}
	writeList(w, pages)
	w.uint(uint64(max(m.Aux, 0)))
	w.uint(uint64(m.Required))
	writeLists(w, state)
	w.uint(uint64(m.Prefix))
	w.text(dummy)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NixlMetadata) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 256+4*len(m.Pages))
	m.AppendTo(&w)
	return w.frames
}
