package wire

import "github.com/kvferry/kvferry/room"

const abortTag = "ABORT"

// Abort says that decode gave a room up; the same in all dialects. Frames: ABORT, room[, ip, port[, generation]].
type Abort struct {
	Room          room.ID
	Addr          Addr  // where the acknowledgement goes; zero: not told
	Generation    int64 // decode's own counter, sent back as it is
	HasGeneration bool  // an acknowledgement is wanted; only with Addr
}

// ParseAbort reads an abort. As in SGLang, a room that can be read is enough: an address that is incomplete or can't be one counts as not
// told, and the generation then too; so does a generation that is no number.
func ParseAbort(frames [][]byte) (Abort, error) {
	r := newReader("abort", frames)
	if !r.tag(abortTag, 2) {
		return Abort{}, r.err
	}
	m := Abort{Room: r.room(1)}
	if r.err != nil {
		return Abort{}, r.err
	}
	if len(frames) < 4 {
		return m, nil
	}
	port, ok := digits(frames[3])
	if !validHost(frames[2]) || !ok || port == 0 || port > 65535 {
		return m, nil
	}
	m.Addr = Addr{IP: string(frames[2]), Port: uint16(port)}
	m.Generation, m.HasGeneration = signed(r.at(4))
	return m, nil
}

// AppendTo implements Message.
func (m Abort) AppendTo(w *Writer) {
	w.text(abortTag)
	w.room(m.Room)
	if m.Addr.IsZero() {
		return
	}
	w.addr(m.Addr)
	if m.HasGeneration {
		w.int(m.Generation)
	}
}

// AppendFrames appends the frames of m, in memory of their own.
func (m Abort) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 64+len(m.Addr.IP))
	m.AppendTo(&w)
	return w.frames
}
