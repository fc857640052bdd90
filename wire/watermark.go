package wire

const watermarkTag = "WATERMARK"

// Watermark tells prefill how much of decode's staging ring is free again. Frames: WATERMARK, round, tail, session.
type Watermark struct {
	Round   int64 // round of the oldest live allocation
	Tail    int64 // its offset in bytes
	Session string
}

// ParseWatermark reads a watermark.
func ParseWatermark(frames [][]byte) (Watermark, error) {
	r := newReader("watermark", frames)
	if !r.tag(watermarkTag, 4) {
		return Watermark{}, r.err
	}
	m := Watermark{
		Round:   r.int(1, "round", 0, MaxStaging),
		Tail:    r.int(2, "tail", 0, MaxStaging),
		Session: r.name(3, "session"),
	}
	if r.err != nil {
		return Watermark{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m Watermark) AppendTo(w *Writer) {
	w.text(watermarkTag)
	w.int(m.Round)
	w.int(m.Tail)
	w.text(m.Session)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m Watermark) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 64+len(m.Session))
	m.AppendTo(&w)
	return w.frames
}
