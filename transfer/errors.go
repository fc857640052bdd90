package transfer

import "errors"

// Errors of engines, a closed set. An engine wraps them with the fact that it adds; test with errors.Is.
var (
	// ErrInvalid: the call can't be right. Fix it.
	ErrInvalid = errors.New("invalid argument")
	// ErrNoSpace: the engine's address space or a table is full.
	ErrNoSpace = errors.New("no address space is left")
	// ErrClosed: the engine is closed. Ours.
	ErrClosed = errors.New("engine is closed")
	// ErrCanceled: Cancel or the caller's context ended it. Ours.
	ErrCanceled = errors.New("canceled")
	// ErrUnsupported: the engine does not have the capability.
	ErrUnsupported = errors.New("engine can't do this")

	// ErrNotRegistered: no memory is registered at the address, says the destination. The peer's knowledge of it is stale or wrong.
	ErrNotRegistered = errors.New("address is not registered at the destination")
	// ErrOutOfRange: the range is not, or not all, inside of what the destination has ever admitted.
	ErrOutOfRange = errors.New("range is not admitted at the destination")
	// ErrSealed: the room that the write belongs to is over at the destination.
	ErrSealed = errors.New("range is sealed at the destination")
	// ErrCorrupt: the destination has put other bytes in place than were sent.
	ErrCorrupt = errors.New("bytes were damaged on the way to the destination")
	// ErrPeerGone: the destination can't be reached, its connection ended, or another incarnation has its name.
	ErrPeerGone = errors.New("destination is gone")
	// ErrTimeout: the destination is there and makes no progress.
	ErrTimeout = errors.New("destination makes no progress")
	// ErrProtocol: the destination answers what it must not.
	ErrProtocol = errors.New("destination does not speak the protocol")
)
