// Package wire reads and writes every control message of a hand-off: those of SGLang 0.5.23 in its three dialects (mooncake, nixl, mori)
// and those that kvferry peers exchange among themselves. docs/wire.md has the layouts apart from Go.
//
// A message is the list of frames of one ZeroMQ multipart message. Each has a struct, a function ParseX and the methods AppendTo (into a
// Writer that is used again and again) and AppendFrames (into fresh memory):
//
//	m, err := wire.ParseMooncakeMetadata(frames) // keeps no part of frames, unless the type says so
//	frames = m.AppendFrames(nil)
//
// Readers are stricter than SGLang's: numbers are plain decimal digits within named limits, lists must fill their frame exactly, text must
// be printable. A reader never panics, and allocates no more than the input's own size, since every length is checked against what is
// there and against a limit of this package first. All errors are *Error, and match one of ErrTruncated, ErrUnknownType and ErrRange.
// Frames behind the known ones are ignored.
//
// The package is pure: no I/O, clock, lock or goroutine. Values may be shared as long as nobody changes them; a Writer belongs to one
// goroutine at a time.
package wire
