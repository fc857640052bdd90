// Package transfer moves bytes between ranks and knows nothing of rooms. An [Engine] writes to remote memory (prefill) and lets remote
// engines write to registered memory (decode). Engines are in the packages below; transfertest is the suite that each of them passes.
package transfer

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errors of engines. An engine wraps them with the fact that it adds.
var (
	ErrNotRegistered = errors.New("address is not registered at the destination")
	ErrOutOfRange    = errors.New("range is not admitted at the destination")
	ErrSealed        = errors.New("range is sealed at the destination") // the room that the write belongs to is over there
	ErrPeerGone      = errors.New("destination is gone")                // it can't be reached, or its connection ended
	ErrProtocol      = errors.New("destination does not speak the protocol")
	ErrTimeout       = errors.New("destination makes no progress")
	ErrCanceled      = errors.New("write was cancelled")
	ErrClosed        = errors.New("engine is closed")
	ErrInvalid       = errors.New("invalid argument")
	ErrUnsupported   = errors.New("engine can't do this")
)

// Capabilities is what an engine can do; package node picks the rule of release from it.
type Capabilities struct {
	ReceiverApplied bool // the receiving process puts bytes in place itself, so it can seal and count coverage
	VirtualPages    bool // remote addresses are the receiver's own invention
	Confirmed       bool // completion means that the bytes are in place at the destination
	CancelProves    bool // a cancelled write can't land after it has settled
}

// Fragment is bytes to be written: Src is read until the write has settled, Dst is an address of the destination.
type Fragment struct {
	Src []byte
	Dst uint64
}

// Region is registered memory in equal items.
type Region interface {
	// Base is the address of virtual item 0 for peers; virtual item v begins at Base + v × item length.
	Base() uint64
}

// Window is the items of one region that a lease admits, by their physical numbers.
type Window struct {
	Region Region
	Items  []int32
}

// Grant is what a lease admits: virtual item = Generation × items of the region + physical item.
type Grant struct {
	Generation uint32
	Windows    []Window
	// OnCovered is called once, on a goroutine of the engine, when every byte is in place. It must not block. nil: not wanted.
	OnCovered func()
}

// Lease is the admission of writes to some items for one life of a room. Its methods are safe for concurrent use and do not block.
type Lease interface {
	// Covered is how many distinct bytes of the lease are in place, and how many there are.
	Covered() (got, want uint64)
	// Seal ends the admission: later bytes, also those of a write that is streaming in, do not reach memory.
	Seal()
	// Idle is closed once the lease is sealed and no reader is inside its memory: the physical items are free.
	Idle() <-chan struct{}
	// Retire forgets the lease after Idle, so that its generation may be opened again.
	Retire()
}

// Handle is a batch of writes under way.
type Handle interface {
	// Done is closed when the outcome is known.
	Done() <-chan struct{}
	// Err is the outcome, once Done is closed: nil when every byte is in place at the destination (see Capabilities.Confirmed).
	Err() error
	// Settled is closed when the batch reads its source no more and sends nothing more. It follows Done.
	Settled() <-chan struct{}
	// Cancel stops the batch as soon as possible. Done and Settled follow.
	Cancel()
}

// Engine moves bytes. All methods are safe for concurrent use.
type Engine interface {
	// Name is what peers dial and cache; fresh for each incarnation.
	Name() string
	Capabilities() Capabilities
	// Register makes memory known, in items of the given length. It must stay valid and must not move until Close has returned.
	Register(mem []byte, item int) (Region, error)
	// Open admits writes. Errors: ErrInvalid for items outside of their region, or a generation that is open.
	Open(Grant) (Lease, error)
	// Write starts a batch and returns; the batch slice itself may be reused at once, the sources when it has settled.
	Write(peer string, batch []Fragment) (Handle, error)
	// Close ends everything under way and waits until nothing touches registered memory, or ctx ends.
	Close(ctx context.Context) error
}

// Memory is page-aligned memory outside of the Go heap.
type Memory struct{ b []byte }

// NewMemory maps size bytes of zeroed memory.
func NewMemory(size int) (*Memory, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: memory of %d bytes", ErrInvalid, size)
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return &Memory{b}, nil
}

// Bytes is the memory, until Close.
func (m *Memory) Bytes() []byte { return m.b }

// Close unmaps the memory.
func (m *Memory) Close() error {
	b := m.b
	m.b = nil
	if b == nil {
		return nil
	}
	return unix.Munmap(b)
}
