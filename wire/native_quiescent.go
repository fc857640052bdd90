package wire

import "github.com/kvferry/kvferry/room"

// NativeQuiescent says that all writes of a prefill rank for a room have settled. Frames: KVFERRY, QUIESCENT, room, epoch, unique rank.
type NativeQuiescent struct {
	Room  room.ID
	Epoch room.Epoch
	Rank  int // unique rank
}

// ParseNativeQuiescent reads it.
func ParseNativeQuiescent(frames [][]byte) (NativeQuiescent, error) {
	r := newReader("native quiescent", frames)
	if !r.native(typeQuiescent, 5) {
		return NativeQuiescent{}, r.err
	}
	m := NativeQuiescent{
		Room: r.room(2), Epoch: r.epoch(3), Rank: r.rank(4, "unique rank"),
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
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NativeQuiescent) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 160)
	m.AppendTo(&w)
	return w.frames
}
