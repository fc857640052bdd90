package wire

import "github.com/kvferry/kvferry/room"

// NativeStatus is a prefill rank's word on a room, repeated until it is acknowledged. Frames: KVFERRY, STATUS, room, epoch, status, unique
// rank, seq, cause code, cause text.
type NativeStatus struct {
	Room   room.ID
	Epoch  room.Epoch // 0: prefill was told none
	Status room.Status
	Rank   int       // unique rank
	Seq    uint64    // the sender's number of this message; its repeats carry the same
	Code   room.Code // 0: no cause
	Text   string    // cleaned, at most MaxText bytes
}

// ParseNativeStatus reads it. An unknown label of a cause is read as peer_failed.
func ParseNativeStatus(frames [][]byte) (NativeStatus, error) {
	r := newReader("native status", frames)
	if !r.native(typeStatus, 9) {
		return NativeStatus{}, r.err
	}
	m := NativeStatus{
		Room: r.room(2), Epoch: r.epoch(3), Status: r.status(4), Rank: r.rank(5, "unique rank"), Seq: r.seq(6), Code: r.code(7), Text: r.text(8),
	}
	if r.err != nil {
		return NativeStatus{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m NativeStatus) AppendTo(w *Writer) {
	w.native(typeStatus)
	w.room(m.Room)
	w.uint(uint64(m.Epoch))
	w.uint(uint64(m.Status))
	w.uint(uint64(m.Rank))
	w.uint(m.Seq)
	w.code(m.Code)
	w.reason(m.Text)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NativeStatus) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 160+len(m.Text))
	m.AppendTo(&w)
	return w.frames
}
