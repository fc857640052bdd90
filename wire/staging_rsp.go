package wire

import "github.com/kvferry/kvferry/room"

const stagingRspTag = "STAGING_RSP"

// StagingTooLarge stands for an offset: the chunk is larger than the ring, and prefill fails the room. Round is 0 then and End -1.
const StagingTooLarge = -2

// StagingRsp gives prefill a place in decode's staging ring. Frames: STAGING_RSP, room, chunk, offset, round, end, session.
type StagingRsp struct {
	Room    room.ID
	Chunk   int
	Offset  int64 // bytes from the staging base, or StagingTooLarge
	Round   int64 // how often the ring had wrapped
	End     int64 // bytes from the staging base, behind the last one
	Session string
}

// ParseStagingRsp reads a staging answer. Refused although SGLang takes it: negative chunks.
func ParseStagingRsp(frames [][]byte) (StagingRsp, error) {
	r := newReader("staging answer", frames)
	if !r.tag(stagingRspTag, 7) {
		return StagingRsp{}, r.err
	}
	m := StagingRsp{
		Room:    r.room(1),
		Chunk:   int(r.uint(2, "chunk", 0, MaxChunk)),
		Offset:  r.int(3, "offset", StagingTooLarge, MaxStaging),
		Round:   r.int(4, "round", 0, MaxStaging),
		End:     r.int(5, "end", -1, MaxStaging),
		Session: r.name(6, "session"),
	}
	if m.Offset == StagingTooLarge {
		if m.End != -1 || m.Round != 0 {
			r.fail(5, "end", ErrRange, "round %d, end %d, want 0 and -1 with offset %d", m.Round, m.End, StagingTooLarge)
		}
	} else if m.Offset < 0 || m.End < m.Offset {
		r.fail(5, "end", ErrRange, "offset %d, end %d, want 0 ≤ offset ≤ end", m.Offset, m.End)
	}
	if r.err != nil {
		return StagingRsp{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m StagingRsp) AppendTo(w *Writer) {
	w.text(stagingRspTag)
	w.room(m.Room)
	w.uint(uint64(m.Chunk))
	w.int(m.Offset)
	w.int(m.Round)
	w.int(m.End)
	w.text(m.Session)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m StagingRsp) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 96+len(m.Session))
	m.AppendTo(&w)
	return w.frames
}
