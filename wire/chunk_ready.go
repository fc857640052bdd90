package wire

import "github.com/kvferry/kvferry/room"

const chunkReadyTag = "CHUNK_READY"

// ChunkReady says that one writer's part of a staged chunk is in decode's ring (mooncake, nixl). Frames: CHUNK_READY, room, chunk, first
// page, pages, session, unique rank. Positions count from the first page after the prefix.
type ChunkReady struct {
	Room      room.ID
	Chunk     int
	FirstPage int
	Pages     int
	Session   string // the receiver's own session or agent, the same from all writers
	Rank      int    // unique rank of the writer; -1: not told, which SGLang's reader admits
}

// ParseChunkReady reads a chunk-ready message. Refused although SGLang takes it: negative numbers, an empty session, a rank that is no
// number.
func ParseChunkReady(frames [][]byte) (ChunkReady, error) {
	r := newReader("chunk ready", frames)
	if !r.tag(chunkReadyTag, 6) {
		return ChunkReady{}, r.err
	}
	m := ChunkReady{
		Room:      r.room(1),
		Chunk:     int(r.uint(2, "chunk", 0, MaxChunk)),
		FirstPage: int(r.uint(3, "first page", 0, MaxPages)),
		Pages:     int(r.uint(4, "pages", 0, MaxPages)),
		Session:   r.name(5, "session"),
		Rank:      -1,
	}
	if len(frames) > 6 {
		m.Rank = r.rank(6, "unique rank")
	}
	if r.err != nil {
		return ChunkReady{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m ChunkReady) AppendTo(w *Writer) {
	w.text(chunkReadyTag)
	w.room(m.Room)
	w.uint(uint64(m.Chunk))
	w.uint(uint64(m.FirstPage))
	w.uint(uint64(m.Pages))
	w.text(m.Session)
	if m.Rank >= 0 {
		w.uint(uint64(m.Rank))
	}
}

// AppendFrames appends the frames of m, in memory of their own.
func (m ChunkReady) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 96+len(m.Session))
	m.AppendTo(&w)
	return w.frames
}
