package wire

import "github.com/kvferry/kvferry/room"

// NativeAck acknowledges a NativeStatus, a NativeQuiescent or a NativeAbort, in the other direction. Frames: KVFERRY, ACK, room, epoch, rank, seq.
type NativeAck struct {
	Room  room.ID
	Epoch room.Epoch
	Rank  int    // of the sender of the acknowledgement: unique rank on prefill, engine rank on decode
	Seq   uint64 // of the message that is acknowledged
}

// ParseNativeAck reads it.
func ParseNativeAck(frames [][]byte) (NativeAck, error) {
	r := newReader("native ack", frames)
	if !r.native(typeAck, 6) {
		return NativeAck{}, r.err
	}
	m := NativeAck{
		Room: r.room(2), Epoch: r.epoch(3), Rank: r.rank(4, "rank"), Seq: r.seq(5),
	}
	if r.err != nil {
		return NativeAck{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m NativeAck) AppendTo(w *Writer) {
	w.native(typeAck)
	w.room(m.Room)
	w.uint(uint64(m.Epoch))
	w.uint(uint64(m.Rank))
	w.uint(m.Seq)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NativeAck) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 160)
	m.AppendTo(&w)
	return w.frames
}
