package wire

import "encoding/binary"

// The part of MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md) that Mori's registration uses: arrays, binaries and nil;
// all lengths big endian.
const (
	mpFixArray = 0x90 // low four bits: length
	mpNil      = 0xc0
	mpBin8     = 0xc4
	mpBin16    = 0xc5
	mpBin32    = 0xc6
	mpArray16  = 0xdc
	mpArray32  = 0xdd
)

// msgpack takes one frame apart; errors go to r.
type msgpack struct {
	r     *reader
	i     int
	frame string
	b     []byte
	left  int // numbers of entries that may still come, over all lists of the frame
}

// take cuts n bytes off.
func (p *msgpack) take(n int) []byte {
	if p.r.err != nil {
		return nil
	}
	if n > len(p.b) {
		p.r.fail(p.i, p.frame, ErrTruncated, "%d bytes left, want %d", len(p.b), n)
		return nil
	}
	b := p.b[:n]
	p.b = p.b[n:]
	return b
}

// length reads a big-endian number of n bytes, at most 4; 0 after an error.
func (p *msgpack) length(n int) int {
	var v uint64
	for _, c := range p.take(n) {
		v = v<<8 | uint64(c)
	}
	return int(min(v, 1<<31-1)) // beyond any limit, and an int on every machine
}

func (p *msgpack) head() byte {
	if b := p.take(1); b != nil {
		return b[0]
	}
	return 0
}

// array reads the head of an array of at most most entries.
func (p *msgpack) array(most int) int {
	n := 0
	switch c := p.head(); {
	case p.r.err != nil:
		return 0
	case c&0xf0 == mpFixArray:
		n = int(c & 0x0f)
	case c == mpArray16:
		n = p.length(2)
	case c == mpArray32:
		n = p.length(4)
	default:
		p.r.fail(p.i, p.frame, ErrRange, "msgpack type %#02x, want an array", c)
	}
	if n > most {
		p.r.fail(p.i, p.frame, ErrRange, "%d entries, want at most %d", n, most)
	} else if n > len(p.b) { // each takes a byte at least
		p.r.fail(p.i, p.frame, ErrTruncated, "%d bytes left for %d entries", len(p.b), n)
	}
	if p.r.err != nil {
		return 0
	}
	return n
}

// bins reads an array of binaries; nil stands for nil where that is allowed.
func (p *msgpack) bins(nilAllowed bool) [][]byte {
	n := p.array(p.left)
	p.left -= n
	if n == 0 {
		return nil
	}
	list := make([][]byte, n)
	for k := range list {
		size := 0
		switch c := p.head(); {
		case p.r.err != nil:
			return nil
		case c == mpNil && nilAllowed:
			continue
		case c == mpBin8:
			size = p.length(1)
		case c == mpBin16:
			size = p.length(2)
		case c == mpBin32:
			size = p.length(4)
		default:
			p.r.fail(p.i, p.frame, ErrRange, "msgpack type %#02x, want a binary", c)
		}
		if size > MaxBlob {
			p.r.fail(p.i, p.frame, ErrRange, "descriptor of %d bytes, want at most %d", size, MaxBlob)
		}
		b := p.take(size)
		if p.r.err != nil {
			return nil
		}
		list[k] = append(make([]byte, 0, len(b)), b...) // not nil, even if empty
	}
	return list
}

func (p *msgpack) end() {
	if p.r.err == nil && len(p.b) > 0 {
		p.r.fail(p.i, p.frame, ErrRange, "%d bytes after the list, want none", len(p.b))
	}
}

// descs reads a frame with a list of binaries; nil for an empty frame.
func (r *reader) descs(i int, frame string) [][]byte {
	if r.err != nil || len(r.at(i)) == 0 {
		return nil
	}
	p := msgpack{r, i, frame, r.at(i), MaxPointers}
	list := p.bins(false)
	p.end()
	return list
}

// stateDescs reads a frame with a list of lists of binaries or nil.
func (r *reader) stateDescs(i int, frame string) [][][]byte {
	if r.err != nil || len(r.at(i)) == 0 {
		return nil
	}
	p := msgpack{r, i, frame, r.at(i), MaxPointers}
	n := p.array(MaxStateLists)
	if n == 0 {
		p.end()
		return nil
	}
	lists := make([][][]byte, n)
	for k := range lists {
		lists[k] = p.bins(true)
	}
	p.end()
	return lists
}

func appendMsgpackArray(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, mpFixArray|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, mpArray16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, mpArray32), uint32(n))
}

// appendMsgpackBins writes an array of binaries; nil is written as nil.
func appendMsgpackBins(b []byte, list [][]byte) []byte {
	b = appendMsgpackArray(b, len(list))
	for _, v := range list {
		switch n := len(v); {
		case v == nil:
			b = append(b, mpNil)
			continue
		case n < 1<<8:
			b = append(b, mpBin8, byte(n))
		case n < 1<<16:
			b = binary.BigEndian.AppendUint16(append(b, mpBin16), uint16(n))
		default:
			b = binary.BigEndian.AppendUint32(append(b, mpBin32), uint32(n))
		}
		b = append(b, v...)
	}
	return b
}
