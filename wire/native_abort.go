package wire

import "github.com/kvferry/kvferry/room"

// NativeAbort says that decode gave a room up, repeated until it is acknowledged. Frames: KVFERRY, ABORT, room, epoch, ip, port, seq, cause
// code, cause text.
type NativeAbort struct {
	Room  room.ID
	Epoch room.Epoch
	Addr  Addr   // the decode rank's control socket
	Seq   uint64 // the sender's number of this message; its repeats carry the same
	Code  room.Code
	Text  string // cleaned, at most MaxText bytes
}

// ParseNativeAbort reads it. An unknown label of a cause is read as peer_failed.
func ParseNativeAbort(frames [][]byte) (NativeAbort, error) {
	r := newReader("native abort", frames)
	if !r.native(typeAbort, 9) {
		return NativeAbort{}, r.err
	}
	m := NativeAbort{
		Room: r.room(2), Epoch: r.epoch(3), Addr: r.addr(4), Seq: r.seq(6), Code: r.code(7), Text: r.text(8),
	}
	if r.err != nil {
		return NativeAbort{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m NativeAbort) AppendTo(w *Writer) {
	w.native(typeAbort)
	w.room(m.Room)
	w.uint(uint64(m.Epoch))
	w.addr(m.Addr)
	w.uint(m.Seq)
	w.code(m.Code)
	w.reason(m.Text)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NativeAbort) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 160+len(m.Text))
	m.AppendTo(&w)
	return w.frames
}
