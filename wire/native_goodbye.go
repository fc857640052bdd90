package wire

import "github.com/kvferry/kvferry/room"

// NativeGoodbye announces a planned end, either way. Frames: KVFERRY, GOODBYE, cause code, cause text.
type NativeGoodbye struct {
	Code room.Code
	Text string // cleaned, at most MaxText bytes
}

// ParseNativeGoodbye reads it. An unknown label of a cause is read as peer_failed.
func ParseNativeGoodbye(frames [][]byte) (NativeGoodbye, error) {
	r := newReader("native goodbye", frames)
	if !r.native(typeGoodbye, 4) {
		return NativeGoodbye{}, r.err
	}
	m := NativeGoodbye{
		Code: r.code(2), Text: r.text(3),
	}
	if r.err != nil {
		return NativeGoodbye{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m NativeGoodbye) AppendTo(w *Writer) {
	w.native(typeGoodbye)
	w.code(m.Code)
	w.reason(m.Text)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NativeGoodbye) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 160+len(m.Text))
	m.AppendTo(&w)
	return w.frames
}
