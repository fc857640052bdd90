package wire

import "github.com/kvferry/kvferry/room"

const bootstrapTag = "BOOTSTRAP"

// Bootstrap tells prefill that decode waits for a room and publishes its pages only when prefill has finished (deferred allocation,
// mooncake). Frames: BOOTSTRAP, room, ip, port.
type Bootstrap struct {
	Room room.ID
	Addr Addr
}

// ParseBootstrap reads a bootstrap message.
func ParseBootstrap(frames [][]byte) (Bootstrap, error) {
	r := newReader("bootstrap", frames)
	if !r.tag(bootstrapTag, 4) {
		return Bootstrap{}, r.err
	}
	m := Bootstrap{Room: r.room(1), Addr: r.addr(2)}
	if r.err != nil {
		return Bootstrap{}, r.err
	}
	return m, nil
}

// AppendTo implements Message.
func (m Bootstrap) AppendTo(w *Writer) {
	w.text(bootstrapTag)
	w.room(m.Room)
	w.addr(m.Addr)
}

// AppendFrames appends the frames of m, in memory of their own.
func (m Bootstrap) AppendFrames(dst [][]byte) [][]byte {
	w := fresh(dst, 48+len(m.Addr.IP))
	m.AppendTo(&w)
	return w.frames
}
