package wire

import "github.com/kvferry/kvferry/room"

const stagingReqTag = "STAGING_REQ"

// StagingReq asks decode for a place in its staging ring. Frames: STAGING_REQ, room, chunk, pages, session[, pp rank]. Send it only to a
// rank that registered a staging base: a mooncake decode rank without one loses its control thread over it.
type StagingReq struct {
	Room    room.ID
	Chunk   int
	Pages   int    // at least 1
	Session string // the receiver's own session or agent
	PPRank  int    // prefill's stage; -1: not told (nixl)
}

// ParseStagingReq reads a staging request.
func ParseStagingReq(frames [][]byte) (StagingReq, error) {
	r := newReader("staging request", frames)
	if !r.tag(stagingReqTag, 5) {
		return StagingReq{}, r.err
	}
	m := StagingReq{
		Room:    r.room(1),
		Chunk:   int(r.uint(2, "chunk", 0, MaxChunk)),
		Pages:   int(r.uint(3, "pages", 1, MaxPages)),
		Session: r.name(4, "session"),
		PPRank:  -1,
	}
	if len(frames) > 5 {
		m.PPRank = r.rank(5, "pp rank")
	}
	if r.err != nil {
		return StagingReq{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m StagingReq) AppendTo(w *Writer) {
	w.text(stagingReqTag)
	w.room(m.Room)
	w.uint(uint64(m.Chunk))
	w.uint(uint64(m.Pages))
	w.text(m.Session)
	if m.PPRank >= 0 {
		w.uint(uint64(m.PPRank))
	}
}

// AppendFrames appends the frames of m, in memory of their own.
func (m StagingReq) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 80+len(m.Session))
	m.AppendTo(&w)
	return w.frames
}
