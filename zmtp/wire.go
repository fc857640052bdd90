package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Greeting, RFC 23 §"The Greeting", 64 bytes: signature FF, 8 bytes of padding (libzmq puts a length there), 7F; version major, minor;
// mechanism, 20 bytes padded with zero; as-server, 1 byte; filler, 31 bytes.
const (
	greetingLen  = 64
	signatureLen = 10
	mechanismOff = 12
	mechanismLen = 20
	versionMajor = 3
	versionMinor = 1
)

// Frame flags, RFC 23 §"Framing". A size of one byte follows, or of eight (big-endian) with flagLong.
const (
	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04
	flagsKnown  = flagMore | flagLong | flagCommand

	shortMax      = 255
	maxHeaderSize = 9
)

// Bounds of our own for what the RFCs leave open.
const (
	// MaxCommand bounds the body of a command, in bytes; READY is the only long one.
	MaxCommand = 16 << 10
	// MaxProperties bounds the number of properties in READY.
	MaxProperties = 64
	// maxPingContext is the RFC's own bound, 37 §"Connection Heartbeating".
	maxPingContext = 16
)

// Names of the properties that ZMTP itself defines.
const (
	propSocketType = "Socket-Type"
	propIdentity   = "Identity"
)

// Socket types as they stand in READY.
const (
	typePush = "PUSH"
	typePull = "PULL"
)

// Properties are the application properties of READY, name to value. Names are compared without regard to case on the wire; a map given
// in Config must not hold two that differ by case only. Values are any bytes.
type Properties map[string]string

// Get returns the value of the property of that name, whatever its case.
func (p Properties) Get(name string) (string, bool) {
	if v, ok := p[name]; ok {
		return v, true
	}
	for k, v := range p {
		if strings.EqualFold(k, name) {
			return v, true
		}
	}
	return "", false
}

func (p Properties) validate() error {
	size, seen := 0, map[string]string{}
	for name, value := range p {
		low := strings.ToLower(name)
		if !validName(name) {
			return fmt.Errorf("%w: property name %q: want 1 to 255 of A-Z a-z 0-9 - _ . +", ErrConfig, name)
		}
		if low == "socket-type" || low == "identity" || low == "resource" {
			return fmt.Errorf("%w: property name %q belongs to ZMTP", ErrConfig, name)
		}
		if other, dup := seen[low]; dup {
			return fmt.Errorf("%w: properties %q and %q are the same name", ErrConfig, other, name)
		}
		seen[low] = name
		size += 5 + len(name) + len(value)
	}
	if limit := MaxCommand - 64; size > limit || len(p) > MaxProperties-2 {
		return fmt.Errorf("%w: %d properties of %d bytes: limit %d of %d bytes", ErrConfig, len(p), size, MaxProperties-2, limit)
	}
	return nil
}

// validName says whether s is a name-char sequence of RFC 23 that fits its length byte.
func validName[T ~string | ~[]byte](s T) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.', c == '+':
		default:
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 255
}

func appendGreeting(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, greetingLen)...)
	g := b[start:]
	// The padding's last byte is 1, as libzmq's: a ZMTP 1.0 peer then reads a length, and fails at once.
	g[0], g[8], g[9] = 0xff, 1, 0x7f
	g[10], g[11] = versionMajor, versionMinor
	copy(g[mechanismOff:], "NULL")
	return b
}

type greeting struct {
	minor byte
}

// checkGreeting judges the first len(b) ≤ 64 bytes of a greeting, so that a stranger is turned away at its first wrong byte.
func checkGreeting(b []byte) error {
	switch {
	case len(b) >= 1 && b[0] != 0xff:
		return fmt.Errorf("%w: greeting begins with 0x%02x, want 0xff", ErrProtocol, b[0])
	case len(b) >= signatureLen && b[9] != 0x7f:
		return fmt.Errorf("%w: signature ends with 0x%02x, want 0x7f", ErrProtocol, b[9])
	case len(b) > 10 && b[10] < versionMajor:
		return fmt.Errorf("%w: the peer speaks revision %d, want ZMTP 3.0 or newer", ErrVersion, b[10])
	case len(b) >= mechanismOff+mechanismLen && string(b[mechanismOff:mechanismOff+mechanismLen]) != "NULL"+strings.Repeat("\x00", 16):
		return fmt.Errorf("%w: %q, want NULL", ErrMechanism, strings.TrimRight(string(b[mechanismOff:mechanismOff+mechanismLen]), "\x00"))
	}
	return nil
}

func parseGreeting(b []byte) (greeting, error) {
	if err := checkGreeting(b[:min(len(b), greetingLen)]); err != nil {
		return greeting{}, err
	}
	if len(b) < greetingLen {
		return greeting{}, fmt.Errorf("%w: greeting of %d bytes, want %d", ErrTruncated, len(b), greetingLen)
	}
	minor := b[11]
	if b[10] > versionMajor {
		minor = versionMinor // a newer peer speaks our version with us
	}
	return greeting{minor: minor}, nil
}

// appendFrameHeader writes flags and size of a frame.
func appendFrameHeader(b []byte, flags byte, size int) []byte {
	if size <= shortMax {
		return append(b, flags, byte(size))
	}
	return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(size))
}

func frameHeaderLen(size int) int {
	if size <= shortMax {
		return 2
	}
	return maxHeaderSize
}

// errShort says that more bytes are needed; it never leaves the package.
var errShort = errors.New("zmtp: need more bytes")

// parseFrameHeader reads flags and size; n is the number of bytes consumed. errShort: b ends within the header.
func parseFrameHeader(b []byte) (flags byte, size uint64, n int, err error) {
	if len(b) == 0 {
		return 0, 0, 0, errShort
	}
	flags = b[0]
	if flags&^byte(flagsKnown) != 0 || flags&(flagCommand|flagMore) == flagCommand|flagMore {
		return 0, 0, 0, fmt.Errorf("%w: frame flags 0x%02x", ErrProtocol, flags)
	}
	if flags&flagLong == 0 {
		if len(b) < 2 {
			return 0, 0, 0, errShort
		}
		return flags, uint64(b[1]), 2, nil
	}
	if len(b) < maxHeaderSize {
		return 0, 0, 0, errShort
	}
	return flags, binary.BigEndian.Uint64(b[1:]), maxHeaderSize, nil
}

// Command bodies: name length, name, data.
const (
	cmdReady = "READY"
	cmdError = "ERROR"
	cmdPing  = "PING"
	cmdPong  = "PONG"
)

func parseCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return "", nil, fmt.Errorf("%w: command of %d bytes ends within its name", ErrTruncated, len(body))
	}
	n := body[1 : 1+int(body[0])]
	if !validName(n) {
		return "", nil, fmt.Errorf("%w: command name %q", ErrProtocol, clip(n))
	}
	switch string(n) { // no allocation for the names we know
	case cmdPing:
		name = cmdPing
	case cmdPong:
		name = cmdPong
	default:
		name = string(n)
	}
	return name, body[1+len(n):], nil
}

func appendCommandName(b []byte, name string) []byte {
	return append(append(b, byte(len(name))), name...)
}

// appendCommand writes a command frame with the body that name and data make up.
func appendCommand(b []byte, name string, data []byte) []byte {
	b = appendFrameHeader(b, flagCommand, 1+len(name)+len(data))
	return append(appendCommandName(b, name), data...)
}

// ready is the READY command: the socket type and the application's properties (Identity is read and dropped).
type ready struct {
	socketType string
	props      Properties
}

func appendReady(b []byte, r ready) []byte {
	var data []byte
	property := func(name, value string) {
		data = appendCommandName(data, name)
		data = binary.BigEndian.AppendUint32(data, uint32(len(value)))
		data = append(data, value...)
	}
	property(propSocketType, r.socketType)
	for _, name := range slices.Sorted(maps.Keys(r.props)) {
		property(name, r.props[name])
	}
	return appendCommand(b, cmdReady, data)
}

func parseReady(data []byte) (ready, error) {
	r := ready{props: Properties{}}
	seen := map[string]bool{}
	for len(data) > 0 {
		if len(seen) == MaxProperties {
			return ready{}, fmt.Errorf("%w: READY has more than %d properties", ErrLimit, MaxProperties)
		}
		n := int(data[0])
		if len(data) < 1+n+4 {
			return ready{}, fmt.Errorf("%w: READY ends within a property's name", ErrTruncated)
		}
		name := data[1 : 1+n]
		if !validName(name) {
			return ready{}, fmt.Errorf("%w: property name %q", ErrProtocol, clip(name))
		}
		size := binary.BigEndian.Uint32(data[1+n:])
		data = data[1+n+4:]
		if uint64(size) > uint64(len(data)) {
			return ready{}, fmt.Errorf("%w: property %q of %d bytes, %d left in READY", ErrTruncated, name, size, len(data))
		}
		value := string(data[:size])
		data = data[size:]
		low := strings.ToLower(string(name))
		if seen[low] {
			return ready{}, fmt.Errorf("%w: property %q comes twice", ErrProtocol, name)
		}
		seen[low] = true
		switch low {
		case "socket-type":
			r.socketType = value
		case "identity":
		default:
			r.props[string(name)] = value
		}
	}
	return r, nil
}

// parsePing returns the context that PONG repeats. The time to live, two bytes, is the peer's permission to give it up early; we keep
// the judgement of silence above this package.
func parsePing(data []byte) (context []byte, err error) {
	if len(data) < 2 {
		return nil, fmt.Errorf("%w: PING of %d bytes, want at least 2", ErrTruncated, len(data))
	}
	if context = data[2:]; len(context) > maxPingContext {
		return nil, fmt.Errorf("%w: PING context of %d bytes, limit %d", ErrLimit, len(context), maxPingContext)
	}
	return context, nil
}

// parseError returns the reason of an ERROR command, made printable.
func parseError(data []byte) string {
	if len(data) > 0 && len(data) >= 1+int(data[0]) {
		data = data[1 : 1+int(data[0])]
	}
	return fmt.Sprintf("%q", clip(data))
}

// clip bounds what a peer's bytes may take up in an error text.
func clip(b []byte) []byte { return b[:min(len(b), 64)] }
