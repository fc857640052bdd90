package wire

import (
	"encoding/binary"

	"github.com/kvferry/kvferry/room"
)

const auxDataTag = "AUX_DATA"

// AuxData carries the content of one aux buffer for a room (mooncake, mori). Frames: AUX_DATA, room, buffer index, aux slot, length as u32
// big endian, the bytes.
type AuxData struct {
	Room   room.ID
	Buffer int    // index into the aux pointers of the registration
	Slot   int    // aux slot of the metadata
	Data   []byte // item length of the buffer; not copied, neither when read nor when written; at most MaxAuxBytes
}

// ParseAuxData reads an aux message. Data is the frame itself. Whether room, buffer, slot and length are what was registered is for the
// caller to check.
func ParseAuxData(frames [][]byte) (AuxData, error) {
	r := newReader("aux data", frames)
	if !r.tag(auxDataTag, 6) {
		return AuxData{}, r.err
	}
	m := AuxData{
		Room:   r.room(1),
		Buffer: int(r.uint(2, "buffer index", 0, MaxSlot)),
		Slot:   int(r.uint(3, "aux slot", 0, MaxSlot)),
		Data:   r.at(5),
	}
	got := len(m.Data)
	if size := r.at(4); len(size) != 4 {
		r.fail(4, "length", ErrTruncated, "%d bytes, want 4", len(size))
	} else if n := binary.BigEndian.Uint32(size); n > MaxAuxBytes {
		r.fail(4, "length", ErrRange, "%d, want at most %d", n, MaxAuxBytes)
	} else if got < int(n) {
		r.fail(5, "data", ErrTruncated, "%d bytes, want %d", got, n)
	} else if got > int(n) {
		r.fail(5, "data", ErrRange, "%d bytes, want %d", got, n)
	}
	if r.err != nil {
		return AuxData{}, r.err
	}
	return m, nil
}

// AppendTo implements Message. The last frame is Data itself.
func (m AuxData) AppendTo(w *Writer) {
	w.text(auxDataTag)
	w.room(m.Room)
	w.uint(uint64(m.Buffer))
	w.uint(uint64(m.Slot))
	n := len(w.buf)
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(len(m.Data)))
	w.end(n)
	w.frames = append(w.frames, m.Data)
}

// AppendFrames appends the frames of m, all but Data in memory of their own.
func (m AuxData) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 64)
	m.AppendTo(&w)
	return w.frames
}
