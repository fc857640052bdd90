package wire

import "github.com/kvferry/kvferry/room"

// MooncakeStatus is a prefill rank's word on a room. Frames: room, status, unique rank; a fourth, reason, is read where one comes.
type MooncakeStatus struct {
	Room   room.ID
	Status room.Status // 0 to 4
	Rank   int         // unique rank
	Reason string      // cleaned, at most MaxText bytes
}

// ParseMooncakeStatus reads a status message.
func ParseMooncakeStatus(frames [][]byte) (MooncakeStatus, error) {
	r := newReader("mooncake status", frames)
	m := readStatus(&r)
	if r.err != nil {
		return MooncakeStatus{}, r.err
	}
	return m, nil
}

// readStatus reads the four frames that all dialects share.
func readStatus(r *reader) (m MooncakeStatus) {
	if !r.need(3) {
		return m
	}
	m.Room = r.room(0)
	m.Status = r.status(1)
	m.Rank = r.rank(2, "unique rank")
	m.Reason = r.text(3)
	return m
}

// AppendTo implements Message. The reason is not written: SGLang's own prefill writes three frames.
func (m MooncakeStatus) AppendTo(w *Writer) {
	w.room(m.Room)
	w.uint(uint64(m.Status))
	w.uint(uint64(m.Rank))
}

// AppendFrames appends the frames of m, in memory of their own.
func (m MooncakeStatus) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 32)
	m.AppendTo(&w)
	return w.frames
}
