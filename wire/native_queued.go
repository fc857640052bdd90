package wire

import (
	"encoding/binary"

	"github.com/kvferry/kvferry/room"
)

// NativeQueued says, from prefill's scheduler loop, which rooms are still queued there. Frames: KVFERRY, QUEUED, unique rank, count, rooms
// as u64 little endian.
type NativeQueued struct {
	Rank  int       // unique rank
	Rooms []room.ID // at most MaxQueuedRooms; send several messages for more
}

// ParseNativeQueued reads it.
func ParseNativeQueued(frames [][]byte) (NativeQueued, error) {
	r := newReader("native queued", frames)
	if !r.native(typeQueued, 5) {
		return NativeQueued{}, r.err
	}
	m := NativeQueued{Rank: r.rank(2, "unique rank")}
	n := int(r.uint(3, "count", 0, MaxQueuedRooms))
	b := r.at(4)
	switch {
	case r.err != nil:
	case len(b) < 8*n:
		r.fail(4, "rooms", ErrTruncated, "%d bytes, want %d", len(b), 8*n)
	case len(b) > 8*n:
		r.fail(4, "rooms", ErrRange, "%d bytes, want %d", len(b), 8*n)
	case n > 0:
		m.Rooms = make([]room.ID, n)
		for i := range m.Rooms {
			m.Rooms[i] = room.ID(binary.LittleEndian.Uint64(b[8*i:]))
			if m.Rooms[i] > room.MaxID {
				r.fail(4, "rooms", ErrRange, "room %d at position %d, want at most %d", uint64(m.Rooms[i]), i, uint64(room.MaxID))
				break
			}
		}
	}
	if r.err != nil {
		return NativeQueued{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m NativeQueued) AppendTo(w *Writer) {
	w.native(typeQueued)
	w.uint(uint64(m.Rank))
	w.uint(uint64(len(m.Rooms)))
	n := len(w.buf)
	for _, id := range m.Rooms {
		w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(id))
	}
	w.end(n)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m NativeQueued) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 64+8*len(m.Rooms))
	m.AppendTo(&w)
	return w.frames
}
