package wire

import "github.com/kvferry/kvferry/room"

// MooncakeMetadata publishes a decode rank's pages for one room to a prefill rank.
//
// Frames: room, ip, port, session, pages, aux slot, state indices, required_dst_info_num, decode_prefix_len, second page list; between
// kvferry peers, frame 10: the epoch. A reader takes frames from 8 on as empty when they are missing.
//
// A dummy message tells a prefill rank that holds nothing for this rank that the room exists. Its pages, aux slot and state are empty.
type MooncakeMetadata struct {
	Room         room.ID
	Addr         Addr
	Session      string
	Pages        []int32 // the decode rank's page numbers for tokens [Prefix, prompt), in order
	Aux          int32   // aux slot; -1: none, which only a dummy may have
	StateIndices [][]int32
	Required     int // decode ranks that the prefill rank waits for, at least 1
	Prefix       int // tokens that decode holds already
	SecondPages  []int32
	Dummy        bool
	Epoch        room.Epoch // native peers only; never set it for a foreign peer
}

// ParseMooncakeMetadata reads metadata from any peer; Epoch stays 0, since a foreign peer's frame 10 would be something else. A message
// without pages and aux slot is a dummy, and its state indices are not looked at, as in SGLang.
func ParseMooncakeMetadata(frames [][]byte) (MooncakeMetadata, error) {
	r := newReader("mooncake metadata", frames)
	m := readMooncakeMetadata(&r)
	if r.err != nil {
		return MooncakeMetadata{}, r.err
	}
	return m, nil
}

// ParseNativeMooncakeMetadata is ParseMooncakeMetadata for a peer known to be a kvferry one. Without frame 10 the epoch is 0.
func ParseNativeMooncakeMetadata(frames [][]byte) (MooncakeMetadata, error) {
	r := newReader("mooncake metadata", frames)
	m := readMooncakeMetadata(&r)
	m.Epoch = room.Epoch(r.uintOr(10, "epoch", 0, 0, 1<<64-1))
	if r.err != nil {
		return MooncakeMetadata{}, r.err
	}
	return m, nil
}

func readMooncakeMetadata(r *reader) (m MooncakeMetadata) {
	if !r.need(8) {
		return m
	}
	m.Room = r.room(0)
	m.Addr = r.addr(1)
	m.Session = r.name(3, "session")
	m.Aux = -1
	if m.Dummy = len(r.at(4)) == 0 && len(r.at(5)) == 0; !m.Dummy {
		m.Pages = readPages(r, 4, "pages")
		m.Aux = int32(r.uint(5, "aux slot", 0, MaxSlot))
		m.StateIndices = readLists[int32](r, 6, "state indices", MaxStateLists, MaxStateEntries)
		m.SecondPages = readPages(r, 9, "second page list")
	}
	m.Required = int(r.uint(7, "required_dst_info_num", 1, MaxRanks))
	m.Prefix = int(r.uintOr(8, "decode_prefix_len", 0, 0, MaxTokens))
	return m
}

// AppendTo implements Message.
func (m MooncakeMetadata) AppendTo(w *Writer) {
	w.room(m.Room)
	w.addr(m.Addr)
	w.text(m.Session)
	if m.Dummy {
		w.empty()
		w.empty()
		w.empty()
	} else {
		writeList(w, m.Pages)
		w.int(int64(m.Aux))
		writeLists(w, m.StateIndices)
	}
	w.uint(uint64(m.Required))
	w.uint(uint64(m.Prefix))
	if m.Dummy {
		w.empty()
	} else {
		writeList(w, m.SecondPages)
	}
	if m.Epoch != 0 {
		w.uint(uint64(m.Epoch))
	}
}

// AppendFrames appends the frames of m, in memory of their own.
func (m MooncakeMetadata) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 256+4*len(m.Pages))
	m.AppendTo(&w)
	return w.frames
}
