package wire

import "github.com/kvferry/kvferry/room"

const abortAckTag = "ABORT_ACK"

// AbortAck says that a prefill rank has no write for a room any more; the same in all dialects. Frames: ABORT_ACK, room, unique rank[,
// generation].
type AbortAck struct {
	Room          room.ID
	Rank          int   // unique rank
	Generation    int64 // that of the abort
	HasGeneration bool  // false from SGLang up to 0.5.21: proves nothing
}

// ParseAbortAck reads an acknowledgement. The short form "ABORT_ACK, room", which a mooncake peer sends at once when it has no deferred
// release, proves nothing and is ErrTruncated, as SGLang drops it.
func ParseAbortAck(frames [][]byte) (AbortAck, error) {
	r := newReader("abort ack", frames)
	if !r.tag(abortAckTag, 3) {
		return AbortAck{}, r.err
	}
	m := AbortAck{Room: r.room(1), Rank: r.rank(2, "unique rank")}
	if len(frames) > 3 {
		m.Generation, m.HasGeneration = r.int(3, "generation", -1<<63, 1<<63-1), true
	}
	if r.err != nil {
		return AbortAck{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m AbortAck) AppendTo(w *Writer) {
	w.text(abortAckTag)
	w.room(m.Room)
	w.uint(uint64(m.Rank))
	if m.HasGeneration {
		w.int(m.Generation)
	}
}

// AppendFrames appends the frames of m, in memory of their own.
func (m AbortAck) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 64)
	m.AppendTo(&w)
	return w.frames
}
