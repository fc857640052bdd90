package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/kvferry/kvferry/room"
)

// reader takes a message apart. The first error sticks; later reads give zero values.
type reader struct {
	msg    string
	frames [][]byte
	base   int // frames taken off before: a guard
	err    error
}

func newReader(msg string, frames [][]byte) reader { return reader{msg: msg, frames: frames} }

func (r *reader) fail(i int, frame string, kind error, format string, args ...any) {
	if r.err != nil {
		return
	}
	if i >= 0 {
		i += r.base
	}
	r.err = &Error{Message: r.msg, Index: i, Frame: frame, Detail: fmt.Sprintf(format, args...), Kind: kind}
}

// need checks the number of frames.
func (r *reader) need(n int) bool {
	if r.err != nil {
		return false
	}
	switch got := len(r.frames); {
	case got < n:
		r.fail(-1, "", ErrTruncated, "%d frames, want at least %d", r.base+got, r.base+n)
	case r.base+got > MaxFrames:
		r.fail(-1, "", ErrRange, "%d frames, want at most %d", r.base+got, MaxFrames)
	}
	return r.err == nil
}

// tag checks that frame 0 is the message's tag, then that there are n frames.
func (r *reader) tag(tag string, n int) bool {
	if r.err == nil && len(r.frames) > 0 && string(r.frames[0]) != tag {
		r.fail(0, "tag", ErrUnknownType, "%s, want %q", shown(r.frames[0]), tag)
	}
	return r.need(n)
}

// guard takes the guard frame off.
func (r *reader) guard(guard string) {
	if r.err != nil {
		return
	}
	if len(r.frames) == 0 {
		r.fail(-1, "", ErrTruncated, "no frames, want %q first", guard)
		return
	}
	if string(r.frames[0]) != guard {
		r.fail(0, "guard", ErrUnknownType, "%s, want %q", shown(r.frames[0]), guard)
		return
	}
	r.frames = r.frames[1:]
	r.base++
}

// at is frame i, empty if there is none.
func (r *reader) at(i int) []byte {
	if i < len(r.frames) {
		return r.frames[i]
	}
	return nil
}

// digits reads decimal digits, 1 to 20.
func digits(b []byte) (n uint64, ok bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || n > (1<<64-1-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// uint reads a decimal number in [lo, hi].
func (r *reader) uint(i int, frame string, lo, hi uint64) uint64 {
	if r.err != nil {
		return 0
	}
	n, ok := digits(r.at(i))
	if !ok || n < lo || n > hi {
		r.fail(i, frame, ErrRange, "%s, want a decimal number from %d to %d", shown(r.at(i)), lo, hi)
		return 0
	}
	return n
}

// uintOr is uint, with a value for an empty or missing frame.
func (r *reader) uintOr(i int, frame string, missing, lo, hi uint64) uint64 {
	if len(r.at(i)) == 0 {
		return missing
	}
	return r.uint(i, frame, lo, hi)
}

// signed reads decimal text of a 64-bit integer, with or without a minus sign.
func signed(b []byte) (int64, bool) {
	neg := len(b) > 0 && b[0] == '-'
	if neg {
		b = b[1:]
	}
	n, ok := digits(b)
	switch {
	case !ok || n > 1<<63 || (n == 1<<63 && !neg):
		return 0, false
	case neg:
		return -int64(n), true // -2^63 negates to itself
	}
	return int64(n), true
}

// int reads a decimal number in [lo, hi], which may be negative.
func (r *reader) int(i int, frame string, lo, hi int64) int64 {
	if r.err != nil {
		return 0
	}
	n, ok := signed(r.at(i))
	if !ok || n < lo || n > hi {
		r.fail(i, frame, ErrRange, "%s, want a decimal number from %d to %d", shown(r.at(i)), lo, hi)
		return 0
	}
	return n
}

func (r *reader) room(i int) room.ID {
	if r.err != nil {
		return 0
	}
	id, err := room.ParseID(r.at(i))
	if err != nil {
		r.fail(i, "room", ErrRange, "%s, want 1 to 19 digits, at most %d", shown(r.at(i)), uint64(room.MaxID))
	}
	return id
}

func (r *reader) rank(i int, frame string) int { return int(r.uint(i, frame, 0, MaxRank)) }

func (r *reader) status(i int) room.Status {
	return room.Status(r.uint(i, "status", uint64(room.Failed), uint64(room.Success)))
}

func (r *reader) epoch(i int) room.Epoch { return room.Epoch(r.uint(i, "epoch", 0, 1<<64-1)) }

func (r *reader) seq(i int) uint64 { return r.uint(i, "seq", 0, 1<<64-1) }

// addr reads two frames, host and port.
func (r *reader) addr(i int) Addr {
	if r.err != nil {
		return Addr{}
	}
	host := r.at(i)
	if !validHost(host) {
		r.fail(i, "ip", ErrRange, "%s, want a host of 1 to %d characters", shown(host), MaxName)
		return Addr{}
	}
	port := r.uint(i+1, "port", 1, 65535)
	return Addr{IP: string(host), Port: uint16(port)}
}

// validHost admits what stands in names and addresses, and so nothing that could change the meaning of an endpoint built from it.
func validHost(b []byte) bool {
	if len(b) == 0 || len(b) > MaxName {
		return false
	}
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', strings.IndexByte(".:-_%", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// name reads an identifier of a peer: UTF-8 without control characters.
func (r *reader) name(i int, frame string) string {
	if r.err != nil {
		return ""
	}
	b := r.at(i)
	bad := len(b) == 0 || len(b) > MaxName || !utf8.Valid(b)
	for _, c := range b {
		bad = bad || c < ' ' || c == 0x7f
	}
	if bad {
		r.fail(i, frame, ErrRange, "%s, want 1 to %d bytes of printable text", shown(b), MaxName)
		return ""
	}
	return string(b)
}

// text reads a reason. It never fails: each byte that is no UTF-8 becomes U+FFFD, the rest is room.CleanText.
func (r *reader) text(i int) string {
	b := r.at(i)
	if r.err != nil || len(b) == 0 {
		return ""
	}
	if len(b) > 4*MaxText {
		b = b[:4*MaxText] // bounds the work; the text is cut to MaxText anyway
	}
	s := string(b)
	if !utf8.ValidString(s) {
		s = string([]rune(s))
	}
	return room.CleanText(s)
}

// blob copies an opaque frame.
func (r *reader) blob(i int, frame string, most int) []byte {
	b := r.at(i)
	if r.err != nil || len(b) == 0 {
		return nil
	}
	if len(b) > most {
		r.fail(i, frame, ErrRange, "%d bytes, want at most %d", len(b), most)
		return nil
	}
	return append([]byte(nil), b...)
}
