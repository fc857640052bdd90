package room

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Code is the closed set of reasons for which a room fails. Codes, not texts, drive metrics, HTTP statuses, exit codes and retries.
// The zero value is no code.
type Code uint8

const (
	_              Code = iota
	Aborted             // the owner of the room gave it up
	ClientGone          // the client that waited for the answer went away
	PeerFailed          // the other side reported a failure
	PeerAborted         // the other side gave the room up
	PeerDead            // the other side's process or connection is proven gone
	PeerSilent          // the other side has shown no sign of life for the condemning time
	PeerRestarted       // another incarnation answers at the other side's address
	TransferFailed      // a write of KV failed
	Incomplete          // Success was reported, but not every byte arrived
	Corrupt             // bytes arrived that are not those that were sent
	Timeout             // a state of the room made no progress within its deadline
	Incompatible        // the pair of instances can't exchange KV
	Invalid             // the request or message can't be served as it is
	Superseded          // another life of the same room number took over
	Exhausted           // a bounded resource had no place left
	Unavailable         // a peer or registry can't be reached
	Draining            // the instance is going out of service
	Internal            // a bug of ours
	endCode
)

// Class says what the receiver of a failure can do about it.
type Class uint8

const (
	_              Class = iota
	ClassInvalid         // fix the call
	ClassConflict        // read the state again
	ClassRetry           // another attempt, on another pair, may succeed
	ClassExhausted       // back off
	ClassCorrupt         // discard the data
	ClassCancelled       // pass it on
	ClassInternal        // a bug
)

// codeTable is the one place that maps a code to its label, HTTP status, exit code, class and sentence.
var codeTable = [endCode]struct {
	label    string
	http     int
	exit     int
	class    Class
	sentence string
}{
	Aborted:        {"aborted", 499, 10, ClassCancelled, "the request was aborted"},
	ClientGone:     {"client_gone", 499, 10, ClassCancelled, "the client went away"},
	PeerFailed:     {"peer_failed", 502, 11, ClassRetry, "the other side reported a failure"},
	PeerAborted:    {"peer_aborted", 502, 11, ClassRetry, "the other side gave the request up"},
	PeerDead:       {"peer_dead", 502, 11, ClassRetry, "the other side is gone"},
	PeerSilent:     {"peer_silent", 504, 11, ClassRetry, "the other side shows no sign of life"},
	PeerRestarted:  {"peer_restarted", 502, 11, ClassRetry, "the other side was restarted"},
	TransferFailed: {"transfer_failed", 502, 12, ClassRetry, "a write of KV failed"},
	Incomplete:     {"incomplete", 502, 12, ClassRetry, "the KV did not arrive whole"},
	Corrupt:        {"corrupt", 502, 12, ClassCorrupt, "the KV arrived damaged"},
	Timeout:        {"timeout", 504, 13, ClassRetry, "no progress within the deadline"},
	Incompatible:   {"incompatible", 502, 14, ClassInvalid, "the two sides can't exchange KV"},
	Invalid:        {"invalid", 400, 2, ClassInvalid, "the request can't be served as it is"},
	Superseded:     {"superseded", 409, 15, ClassConflict, "another request uses the same room number"},
	Exhausted:      {"exhausted", 429, 16, ClassExhausted, "no capacity left"},
	Unavailable:    {"unavailable", 503, 17, ClassRetry, "not reachable"},
	Draining:       {"draining", 503, 17, ClassRetry, "going out of service"},
	Internal:       {"internal", 500, 70, ClassInternal, "internal error"},
}

// Codes lists all codes in order.
func Codes() []Code {
	all := make([]Code, 0, endCode-1)
	for c := Code(1); c < endCode; c++ {
		all = append(all, c)
	}
	return all
}

// Valid reports whether c is one of the set.
func (c Code) Valid() bool { return c > 0 && c < endCode }

func (c Code) row() int {
	if c.Valid() {
		return int(c)
	}
	return int(Internal)
}

// String is the label of c, as in metrics and JSON.
func (c Code) String() string {
	if c == 0 {
		return "none"
	}
	return codeTable[c.row()].label
}

// HTTPStatus is the status a client gets for a request that ends with c; 499 is for the log only, as the client is gone.
func (c Code) HTTPStatus() int { return codeTable[c.row()].http }

// ExitCode is the exit status of a command that ends with c.
func (c Code) ExitCode() int { return codeTable[c.row()].exit }

// Class says what can be done about c.
func (c Code) Class() Class { return codeTable[c.row()].class }

// Sentence says c in words.
func (c Code) Sentence() string { return codeTable[c.row()].sentence }

// ParseCode finds the code of a label.
func ParseCode(label string) (Code, bool) {
	for c := Code(1); c < endCode; c++ {
		if codeTable[c].label == label {
			return c, true
		}
	}
	return 0, false
}

// Side is a role in a hand-off. The zero value is unknown.
type Side uint8

const (
	_ Side = iota
	Prefill
	Decode
	Gateway
)

func (s Side) String() string {
	switch s {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	case Gateway:
		return "gateway"
	}
	return "unknown"
}

// ParseSide finds the side of a name.
func ParseSide(name string) (Side, bool) {
	for s := Prefill; s <= Gateway; s++ {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// Other is the opposite worker role; Gateway has none.
func (s Side) Other() Side {
	switch s {
	case Prefill:
		return Decode
	case Decode:
		return Prefill
	case Gateway:
	}
	return 0
}

// MaxCauseText is the longest text of a cause in bytes, on every wire.
const MaxCauseText = 1024

// Cause is why a room failed. It is an error. The zero value means no failure.
type Cause struct {
	Code Code
	Side Side   // where it was noticed first
	Peer string // the other party, where there is one: address or name
	Rank int    // rank on Side that noticed it, -1 when it does not matter
	Text string // one sentence more, valid UTF-8, at most MaxCauseText bytes
}

// NewCause makes a cause without a rank; the text is cleaned with CleanText.
func NewCause(code Code, side Side, peer, text string) Cause {
	return Cause{Code: code, Side: side, Peer: peer, Rank: -1, Text: CleanText(text)}
}

// Causef is NewCause with a formatted text.
func Causef(code Code, side Side, peer, format string, args ...any) Cause {
	return NewCause(code, side, peer, fmt.Sprintf(format, args...))
}

// IsZero reports whether there is no cause.
func (c Cause) IsZero() bool { return c.Code == 0 }

// Error is the cause as one line.
func (c Cause) Error() string {
	var b strings.Builder
	b.WriteString(c.Code.Sentence())
	if c.Side != 0 {
		fmt.Fprintf(&b, " (%s", c.Side)
		if c.Rank >= 0 {
			fmt.Fprintf(&b, " rank %d", c.Rank)
		}
		if c.Peer != "" {
			fmt.Fprintf(&b, ", peer %s", c.Peer)
		}
		b.WriteByte(')')
	} else if c.Peer != "" {
		fmt.Fprintf(&b, " (peer %s)", c.Peer)
	}
	if c.Text != "" {
		b.WriteString(": ")
		b.WriteString(c.Text)
	}
	return b.String()
}

// Is makes errors.Is(err, Cause{Code: x}) match any cause with that code.
func (c Cause) Is(target error) bool {
	t, ok := target.(Cause)
	return ok && t == Cause{Code: t.Code} && t.Code == c.Code
}

// CleanText makes text fit for a wire and a log: invalid UTF-8 is replaced, control characters become spaces, and the length is cut to
// MaxCauseText bytes at a character's border.
func CleanText(text string) string {
	if len(text) > 4*MaxCauseText {
		text = text[:4*MaxCauseText] // bounds the work below, whatever was received
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if len(text) <= MaxCauseText {
		return text
	}
	n := MaxCauseText
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
