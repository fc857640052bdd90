package wire

import (
	"strconv"

	"github.com/kvferry/kvferry/room"
)

// Message is what can be written.
type Message interface {
	// AppendTo appends the frames of the message to those of w.
	AppendTo(w *Writer)
}

// Writer collects frames in one buffer of its own. After a few messages it allocates no more. The zero value is ready.
type Writer struct {
	frames [][]byte
	buf    []byte
}

// Frames are the frames written since Reset. They are the Writer's until then: send or copy them first.
func (w *Writer) Frames() [][]byte { return w.frames }

// Reset empties w and keeps its memory.
func (w *Writer) Reset() {
	clear(w.frames) // let go of frames that were not copied
	w.frames, w.buf = w.frames[:0], w.buf[:0]
}

// fresh is a Writer that appends to dst, with room for size bytes.
func fresh(dst [][]byte, size int) Writer { return Writer{frames: dst, buf: make([]byte, 0, size)} }

// end makes a frame of what was appended to w.buf since it had n bytes. When buf moves as it grows, earlier frames keep the old memory.
func (w *Writer) end(n int) {
	w.frames = append(w.frames, w.buf[n:len(w.buf):len(w.buf)])
}

func (w *Writer) empty() { w.end(len(w.buf)) }

func (w *Writer) text(s string) {
	n := len(w.buf)
	w.buf = append(w.buf, s...)
	w.end(n)
}

func (w *Writer) bytes(b []byte) {
	n := len(w.buf)
	w.buf = append(w.buf, b...)
	w.end(n)
}

func (w *Writer) uint(v uint64) {
	n := len(w.buf)
	w.buf = strconv.AppendUint(w.buf, v, 10)
	w.end(n)
}

func (w *Writer) int(v int64) {
	n := len(w.buf)
	w.buf = strconv.AppendInt(w.buf, v, 10)
	w.end(n)
}

func (w *Writer) room(id room.ID) { w.uint(uint64(id)) }

func (w *Writer) addr(a Addr) {
	w.text(a.IP)
	w.uint(uint64(a.Port))
}

// code writes a label, nothing for no code.
func (w *Writer) code(c room.Code) {
	if c == 0 {
		w.empty()
		return
	}
	w.text(c.String())
}

// reason writes a text as a reader would take it.
func (w *Writer) reason(s string) { w.text(room.CleanText(s)) }
