package wire

// NixlStatus is MooncakeStatus on NIXL's wire. Frames: KV_STATUS, room, status, unique rank, reason (may be empty or missing).
type NixlStatus MooncakeStatus

// ParseNixlStatus reads a status message.
func ParseNixlStatus(frames [][]byte) (NixlStatus, error) {
	return parseTaggedStatus[NixlStatus]("nixl status", statusTag, frames)
}

func parseTaggedStatus[M NixlStatus | MoriStatus](msg, tag string, frames [][]byte) (M, error) {
	r := newReader(msg, frames)
	r.guard(tag)
	m := readStatus(&r)
	if r.err != nil {
		return M{}, r.err
	}
	return M(m), nil
}

func (m MooncakeStatus) appendTagged(tag string, w *Writer) {
	w.text(tag)
	m.AppendTo(w)
	w.reason(m.Reason)
}

// AppendTo implements Message.
func (m NixlStatus) AppendTo(w *Writer) { MooncakeStatus(m).appendTagged(statusTag, w) }

// AppendFrames appends the frames of m, in memory of their own.
func (m NixlStatus) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 48+len(m.Reason))
	m.AppendTo(&w)
	return w.frames
}
