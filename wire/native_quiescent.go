package wire

import "github.com/kvferry/kvferry/room"

// NativeQuiescent says that all writes of a prefill rank for a room have settled. Frames: KVFERRY, QUIESCENT, room, epoch, unique
// rank, seq.
type NativeQuiescent struct {
	Room  room.ID
	Epoch room.Epoch
	Rank  int    // unique rank
	Seq   uint64 // the sender's number of this message; its repeats carry the same
}

// ParseNativeQuiescent reads it.
func ParseNativeQuiescent(frames [][]byte) (NativeQuiescent, error) {
	r := newReader("native quiescent", frames)
	if !r.native(typeQuiescent, 6) {
		return NativeQuiescent{}, r.err
	}
	m := NativeQuiescent{
		Room: r.room(2), Epoch: r.epoch(3), Rank: r.rank(4, "unique rank"), Seq: r.seq(5),
	}
	if r.err != nil {
		return NativeQuiescent{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m NativeQuiescent) AppendTo(w *Writer) {
	w.native(typeQuiescent)
	w.room(m.Room)
	w.uint(uint64(m.Epoch))
	w.uint(uint64(m.Rank))
	w.uint(m.Seq)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NativeQuiescent) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 160)
	m.AppendTo(&w)
	return w.frames
}
