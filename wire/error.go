package wire

import (
	"errors"
	"fmt"
	"strconv"
)

// The three ways in which a message can be wrong.
var (
	// ErrTruncated: frames or bytes are missing.
	ErrTruncated = errors.New("truncated")
	// ErrUnknownType: the frames are no message of the type asked for; for native messages, a type this version doesn't know.
	ErrUnknownType = errors.New("unknown type")
	// ErrRange: a value is no number, no text, out of its range, too long or too many.
	ErrRange = errors.New("out of range")
)

// Error says which frame of which message is wrong, what is in it and what was expected.
type Error struct {
	Message string // as in Kind's labels, with the dialect: "mooncake metadata"
	Index   int    // of the frame as received; -1: the message as a whole
	Frame   string // name of the frame
	Detail  string // what is there, and what was expected; bounded, whatever was received
	Kind    error  // ErrTruncated, ErrUnknownType or ErrRange
}

func (e *Error) Error() string {
	where := ""
	if e.Index >= 0 {
		where = ": frame " + strconv.Itoa(e.Index) + " (" + e.Frame + ")"
	}
	return e.Message + where + ": " + e.Kind.Error() + ": " + e.Detail
}

// Unwrap makes errors.Is go by Kind.
func (e *Error) Unwrap() error { return e.Kind }

// shown quotes input for an error, cut to what a log line bears.
func shown(b []byte) string {
	const most = 40
	if len(b) > most {
		return fmt.Sprintf("%q… (%d bytes)", b[:most], len(b))
	}
	return strconv.Quote(string(b))
}
