package zmtp

import (
	"errors"
	"fmt"
	"io"
)

// Sizes of the decoder, in bytes. Chosen by the package's own benchmarks, except where noted.
const (
	readBufMin  = 4 << 10   // a connection that says little costs little
	readBufMax  = 128 << 10 // grown to once a read has filled the buffer
	directFrame = 16 << 10  // from here on a frame's bytes go from the socket into the frame, not through the buffer
	slabFrame   = 512       // up to here frames share an allocation
	slabSize    = 14 << 10  // what one kept small frame can hold on to; four fill a span of the allocator
	growFactor  = 16        // a frame's memory is at most this many times (and firstGrow) what the peer has really sent
	firstGrow   = 64 << 10
)

// Memory that a message costs beyond its bytes, charged to every limit, so that a flood of empty frames is bounded too.
const (
	frameOverhead   = 32
	messageOverhead = 64
)

// messageCost is what a message counts against MaxMessage and the queue and total limits.
func messageCost(frames [][]byte) int {
	n := messageOverhead + len(frames)*frameOverhead
	for _, f := range frames {
		n += len(f)
	}
	return n
}

// message is a decoded message with its cost, of which reserved bytes have been accounted for already.
type message struct {
	frames   [][]byte
	cost     int
	reserved int
}

// decoder reads greeting, commands and messages from a byte stream. It knows no socket and no lock.
type decoder struct {
	r      io.Reader
	limits Limits
	// idle is called before every read, because a read may block; nil: nothing.
	idle func() error
	// reserve is called before n more bytes are allocated for a frame of directFrame bytes or more; nil: granted.
	reserve func(n int) error

	buf      []byte
	pos, end int
	full     bool // the last read filled the buffer
	between  bool // the next read is for the first byte of a message or command, and nothing is held

	parts    [][]byte // frames of the message that is not complete yet
	cost     int      // its cost so far
	reserved int

	slab    []byte
	headers [][]byte
}

func newDecoder(r io.Reader, l Limits) *decoder {
	return &decoder{r: r, limits: l, buf: make([]byte, readBufMin)}
}

// fill makes at least n bytes available in the buffer. At the end of the stream: io.EOF if nothing is left in the buffer, else ErrTruncated.
func (d *decoder) fill(n int) error {
	for d.end-d.pos < n {
		d.makeRoom(n)
		if d.idle != nil {
			if err := d.idle(); err != nil {
				return err
			}
			if d.end-d.pos >= n {
				return nil // somebody else has read meanwhile
			}
		}
		m, err := d.r.Read(d.buf[d.end:])
		d.end += m
		d.full = d.end == len(d.buf)
		if d.end-d.pos >= n {
			return nil
		}
		if err != nil {
			return d.ended(err, d.end > d.pos)
		}
	}
	return nil
}

// makeRoom prepares the buffer for a read that is to complete n bytes. A buffer that the last read filled grows.
func (d *decoder) makeRoom(n int) {
	switch held := d.end - d.pos; {
	case len(d.buf) < readBufMax && (d.full || n > len(d.buf)):
		buf := make([]byte, readBufMax)
		d.end = copy(buf, d.buf[d.pos:d.end])
		d.pos, d.buf = 0, buf
	case held == 0:
		d.pos, d.end = 0, 0
	case d.pos+n > len(d.buf) || d.full:
		d.end = copy(d.buf, d.buf[d.pos:d.end])
		d.pos = 0
	}
}

// ended gives a read error its name.
func (d *decoder) ended(err error, within bool) error {
	if errors.Is(err, io.EOF) && within {
		return fmt.Errorf("%w: %w within a greeting or frame", ErrPeerClosed, ErrTruncated)
	}
	return err
}

// greeting reads the 64 bytes, and judges them as they come.
func (d *decoder) greeting() (greeting, error) {
	for _, n := range []int{1, signatureLen, signatureLen + 1, greetingLen} {
		if err := d.fill(n); err != nil {
			return greeting{}, err
		}
		if err := checkGreeting(d.buf[d.pos:min(d.end, d.pos+greetingLen)]); err != nil {
			return greeting{}, err
		}
	}
	g, err := parseGreeting(d.buf[d.pos:d.end])
	d.pos += greetingLen
	return g, err
}

// next returns the next command (its body, valid until the next call) or the next message (whose frames are the caller's). A command may
// stand between the frames of a message: libzmq puts PING and PONG there. io.EOF: the stream ended between two messages.
func (d *decoder) next() (command []byte, m message, err error) {
	for {
		flags, size, err := d.header()
		if err != nil {
			return nil, message{}, err
		}
		if flags&flagCommand != 0 {
			if size > MaxCommand {
				return nil, message{}, fmt.Errorf("%w: command of %d bytes, limit %d", ErrLimit, size, MaxCommand)
			}
			if err := d.body(int(size)); err != nil {
				return nil, message{}, err
			}
			command = d.buf[d.pos : d.pos+int(size)]
			d.pos += int(size)
			return command, message{}, nil
		}
		if err := d.admit(size); err != nil {
			return nil, message{}, err
		}
		frame, err := d.frame(int(size))
		if err != nil {
			return nil, message{}, err
		}
		d.parts = append(d.parts, frame)
		d.cost += int(size) + frameOverhead
		if flags&flagMore == 0 {
			return nil, d.take(), nil
		}
	}
}

// ready appends up to limit messages that are wholly in the buffer, with small frames only, so that nothing is read; command takes the
// commands that stand between them.
func (d *decoder) ready(ms []message, limit int, command func([]byte) error) ([]message, error) {
	for len(ms) < limit {
		if m, ok := d.small(); ok {
			ms = append(ms, m)
			continue
		}
		if !d.whole() {
			break
		}
		body, m, err := d.next()
		if err == nil && body != nil {
			err = command(body)
		}
		if err != nil {
			return ms, err
		}
		if body == nil {
			ms = append(ms, m)
		}
	}
	return ms, nil
}

// whole says whether the buffer holds a command or a message to its end, with small frames only, so that next need not read.
func (d *decoder) whole() bool {
	for at := d.pos; ; {
		flags, size, n, err := parseFrameHeader(d.buf[at:d.end])
		if err != nil || size >= directFrame || int(size) > d.end-at-n {
			return false
		}
		at += n + int(size)
		if flags&(flagMore|flagCommand) == 0 || flags&flagCommand != 0 && at-n-int(size) == d.pos {
			return true
		}
		if flags&flagCommand != 0 {
			return false // between frames: rare, and not for here
		}
	}
}

// small takes a message of one short frame that is wholly in the buffer, the most frequent kind, without the steps of the general way.
func (d *decoder) small() (m message, ok bool) {
	b := d.buf[d.pos:d.end]
	if len(b) < 2 || b[0] != 0 || len(d.parts) > 0 {
		return m, false
	}
	size := int(b[1])
	m.cost = messageOverhead + size + frameOverhead
	if len(b) < 2+size || size > d.limits.MaxFrame || m.cost > d.limits.MaxMessage {
		return message{}, false
	}
	f := d.alloc(size)
	copy(f, b[2:])
	d.pos += 2 + size
	m.frames = d.list(1)
	m.frames[0] = f
	return m, true
}

func (d *decoder) header() (flags byte, size uint64, err error) {
	for {
		flags, size, n, err := parseFrameHeader(d.buf[d.pos:d.end])
		if err == nil {
			d.pos += n
			return flags, size, nil
		}
		if !errors.Is(err, errShort) {
			return 0, 0, err
		}
		need := d.end - d.pos + 1
		if need > 1 && d.buf[d.pos]&flagLong != 0 {
			need = maxHeaderSize
		}
		d.between = need == 1 && len(d.parts) == 0
		err = d.fill(need)
		d.between = false
		if err != nil {
			return 0, 0, d.ended(err, len(d.parts) > 0)
		}
	}
}

// body makes n ≤ max(MaxCommand, directFrame) bytes of a frame available.
func (d *decoder) body(n int) error {
	if err := d.fill(n); err != nil {
		return d.ended(err, true)
	}
	return nil
}

// admit checks a frame's announced size before anything is allocated for it.
func (d *decoder) admit(size uint64) error {
	l := &d.limits
	switch {
	case size > uint64(l.MaxFrame):
		return fmt.Errorf("%w: frame of %d bytes, limit %d", ErrLimit, size, l.MaxFrame)
	case len(d.parts) >= l.MaxFrames:
		return fmt.Errorf("%w: message of more than %d frames", ErrLimit, l.MaxFrames)
	case messageOverhead+d.cost+int(size)+frameOverhead > l.MaxMessage:
		return fmt.Errorf("%w: message of more than %d bytes (with %d for each frame)", ErrLimit, l.MaxMessage, frameOverhead)
	}
	return nil
}

// frame reads a frame's bytes into memory of its own.
func (d *decoder) frame(size int) ([]byte, error) {
	if size < directFrame {
		if err := d.body(size); err != nil {
			return nil, err
		}
		f := d.alloc(size)
		copy(f, d.buf[d.pos:])
		d.pos += size
		return f, nil
	}
	var f []byte
	have := 0
	for have < size {
		want := min(size, max(firstGrow, have*growFactor))
		if d.reserve != nil {
			if err := d.reserve(want - have); err != nil {
				return nil, err
			}
		}
		d.reserved += want - have
		grown := make([]byte, want)
		copy(grown, f[:have])
		f = grown
		n := copy(f[have:], d.buf[d.pos:d.end])
		d.pos += n
		have += n
		for have < want {
			if d.idle != nil {
				if err := d.idle(); err != nil {
					return nil, err
				}
			}
			n, err := d.r.Read(f[have:want])
			have += n
			if err != nil && have < size {
				return nil, d.ended(err, true)
			}
		}
	}
	return f, nil
}

// alloc returns n bytes; small ones are cut from a slab, capped so that the owner's append can't reach the next one.
func (d *decoder) alloc(n int) []byte {
	if n > slabFrame {
		return make([]byte, n)
	}
	if n == 0 {
		return []byte{}
	}
	if len(d.slab) < n {
		d.slab = make([]byte, slabSize)
	}
	f := d.slab[:n:n]
	d.slab = d.slab[n:]
	return f
}

// take closes the message that is being put together.
func (d *decoder) take() message {
	frames := d.list(len(d.parts))
	copy(frames, d.parts)
	m := message{frames: frames, cost: messageOverhead + d.cost, reserved: d.reserved}
	clear(d.parts)
	d.parts, d.cost, d.reserved = d.parts[:0], 0, 0
	return m
}

// list returns a slice for n frames, cut from a larger one.
func (d *decoder) list(n int) [][]byte {
	if len(d.headers) < n {
		d.headers = make([][]byte, max(n, 128))
	}
	frames := d.headers[:n:n]
	d.headers = d.headers[n:]
	return frames
}
