package wire

// MoriStatus is MooncakeStatus on Mori's wire. Frames: MoriMsgGuard, room, status, unique rank, reason (may be empty or missing).
type MoriStatus MooncakeStatus

// ParseMoriStatus reads a status message.
func ParseMoriStatus(frames [][]byte) (MoriStatus, error) {
	return parseTaggedStatus[MoriStatus]("mori status", moriGuard, frames)
}

// AppendTo implements Message.
func (m MoriStatus) AppendTo(w *Writer) { MooncakeStatus(m).appendTagged(moriGuard, w) }

// AppendFrames appends the frames of m, in memory of their own.
func (m MoriStatus) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 48+len(m.Reason))
	m.AppendTo(&w)
	return w.frames
}
