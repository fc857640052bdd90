package wire

import "github.com/kvferry/kvferry/room"

// NativeRefused answers metadata for a room that is over on prefill, with the cause of its end. Frames: KVFERRY, REFUSED, room, epoch,
// unique rank, cause code, cause text.
type NativeRefused struct {
	Room  room.ID
	Epoch room.Epoch // of the metadata
	Rank  int        // unique rank
	Code  room.Code
	Text  string // cleaned, at most MaxText bytes
}

// ParseNativeRefused reads it. An unknown label of a cause is read as peer_failed.
func ParseNativeRefused(frames [][]byte) (NativeRefused, error) {
	r := newReader("native refused", frames)
	if !r.native(typeRefused, 7) {
		return NativeRefused{}, r.err
	}
	m := NativeRefused{
		Room: r.room(2), Epoch: r.epoch(3), Rank: r.rank(4, "unique rank"), Code: r.code(5), Text: r.text(6),
	}
	if r.err != nil {
		return NativeRefused{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m NativeRefused) AppendTo(w *Writer) {
	w.native(typeRefused)
	w.room(m.Room)
	w.uint(uint64(m.Epoch))
	w.uint(uint64(m.Rank))
	w.code(m.Code)
	w.reason(m.Text)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NativeRefused) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 160+len(m.Text))
	m.AppendTo(&w)
	return w.frames
}
