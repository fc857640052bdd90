// Package transfer moves bytes between ranks and knows nothing of rooms. An [Engine] writes to remote memory (prefill) and lets remote
// engines write to registered memory (decode). Engines are in the packages below; transfertest is the suite that each of them passes.
//
// # Addresses
//
// A peer is told addresses that the receiving engine made up. Each region has room for 2^31 virtual items: virtual item
// v = generation × items + physical item stands for that physical item in that generation, at Base + v × item length. Only the items of
// open leases take bytes. An item of a sealed lease, or of a generation that was open once, is a sink: nothing reaches memory, a foreign
// writer is told that all is well, a native one gets ErrSealed. Everything else is refused with ErrOutOfRange or ErrNotRegistered.
//
// A fragment may span consecutive virtual items of one lease within one generation, since they are consecutive in memory. It never spans two
// regions, leases or generations.
//
// # Verdict and quiescence
//
// Who writes waits for Done to know the outcome and for Settled to have the source memory back; they are two moments, since an error is
// often known while another connection still sends. Who receives waits for OnCovered to know that bytes are there, and for Idle, after
// Seal, to have the destination memory back. Neither ever waits for a slow peer.
//
// All methods of all types here are safe for concurrent use. The package has no goroutines; those of an engine are listed in its package.
package transfer

import "context"

// Capabilities is what an engine can do; package node picks the rule of release from it.
type Capabilities struct {
	ReceiverApplied bool // the receiving process puts bytes in place itself, so it can seal and count coverage
	VirtualPages    bool // remote addresses are the receiver's own invention
	Confirmed       bool // completion means that the bytes are in place at the destination, or in its sink
	CancelProves    bool // a cancelled write that has settled can't reach memory once the receiver has sealed it
}

// Fragment is bytes to be written: Src is read until the write has settled, Dst is an address of the destination. Any length and any
// alignment will do; one without bytes is done at once. Whole items are the fastest.
type Fragment struct {
	Src []byte
	Dst uint64
}

// Range is addresses of a peer: Len bytes from Base.
type Range struct {
	Base, Len uint64
}

// Region is registered memory in equal items.
type Region interface {
	// Base is the address of virtual item 0 for peers; virtual item v begins at Base + v × Item. It is at least 2^40, and the address range
	// of 2^31 items ends below 2^62. It never changes, and differs from one incarnation of an engine to the next.
	Base() uint64
	// Item is the length of an item in bytes.
	Item() int
	// Items is the number of physical items.
	Items() int
	// Unregister takes the region away: its leases are sealed, its addresses are never used again, and peers that write to them get
	// ErrNotRegistered. It returns once nothing touches the memory any more; with ctx's error if that comes first, and then the memory must
	// stay. Called again it waits again.
	Unregister(ctx context.Context) error
}

// Window is the items of one region that a lease admits, by their physical numbers, in any order, each once. The engine keeps Items; it must
// not be changed before Retire. Windows of one grant may share it.
type Window struct {
	Region Region
	Items  []int32
}

// Grant is what a lease admits: virtual item = Generation × items of the region + physical item.
type Grant struct {
	// Generation is at most 2^31 / items - 1 in each region, and no open or sealed lease with a window in one of the regions has it.
	Generation uint32
	// Windows are of different regions.
	Windows []Window
	// OnCovered is called once, on a goroutine of the engine and without its locks, when every byte is in place; at once for a lease of no
	// bytes. A lease that is sealed before is never covered. It must not block. nil: not wanted.
	OnCovered func()
}

// Lease is the admission of writes to some items for one life of a room. Its methods do not block.
type Lease interface {
	// Covered is how many distinct bytes of the lease are in place, and how many there are. Bytes written twice count once. They count when
	// their fragment is complete or its connection has ended.
	Covered() (got, want uint64)
	// Seal ends the admission: later bytes, also those of a fragment that is streaming in, do not reach memory. Once more it does nothing.
	Seal()
	// Idle is closed once the lease is sealed and no reader is inside its memory: the physical items are free. No peer can delay it.
	Idle() <-chan struct{}
	// Retire seals the lease and forgets it, so that its generation may be opened again. It is for when the writers are proven silent:
	// afterwards a late byte would land in the next lease of the generation.
	Retire()
}

// Handle is a batch of writes under way.
type Handle interface {
	// Done is closed when the outcome is known.
	Done() <-chan struct{}
	// Err is the outcome, nil before Done is closed and when every byte is in place at the destination (see Capabilities.Confirmed).
	// Errors: ErrNotRegistered, ErrOutOfRange, ErrSealed, ErrCorrupt, ErrPeerGone, ErrProtocol, ErrTimeout, ErrCanceled, ErrClosed. After an error any
	// part of the batch may be in place.
	Err() error
	// Settled is closed when the batch reads its source no more and sends nothing more. It follows Done, soon: it waits for no peer.
	Settled() <-chan struct{}
	// Answered is valid once Settled is closed: the peer has answered everything that was sent, so that not a byte of the batch is under way
	// any more, wherever it is. A batch that failed unanswered may still have bytes on the way to the peer's memory.
	Answered() bool
	// Cancel stops the batch as soon as possible; Done, with ErrCanceled unless the outcome is known already, and Settled follow.
	Cancel()
}

// WhenSettled calls f once h has settled: on a goroutine of the engine or of the caller, without a lock, and without one more goroutine where
// the engine's handles can do that. f must not block.
func WhenSettled(h Handle, f func()) {
	if w, ok := h.(interface{ WhenSettled(f func()) }); ok {
		w.WhenSettled(f)
		return
	}
	go func() {
		<-h.Settled()
		f()
	}()
}

// Engine moves bytes.
type Engine interface {
	// Name is what peers dial and cache, ending in a colon and a decimal port; fresh for each incarnation.
	Name() string
	Capabilities() Capabilities
	// Register makes memory known, in items of the given length. Its length is a multiple of item, it overlaps no registered memory, it does
	// not move, and it stays valid until Unregister or Close has returned without an error. Errors: ErrInvalid; ErrNoSpace when no
	// addresses are left; ErrClosed.
	Register(mem []byte, item int) (Region, error)
	// Open admits writes. Errors: ErrInvalid for items outside of their region, items listed twice, regions of another engine or that are
	// unregistered, or a generation that is in use or out of bounds; ErrClosed.
	Open(Grant) (Lease, error)
	// Write starts a batch and returns. Fragments are written in any order. The batch slice itself may be reused at once, the sources when
	// the batch has settled. Errors, after which nothing has begun: ErrInvalid for a peer's name that can't be one; ErrOutOfRange for a
	// fragment outside of what Restrict allows; ErrClosed.
	Write(peer string, batch []Fragment) (Handle, error)
	// Restrict bounds later batches to a peer: a fragment that does not lie inside one of the ranges is refused here, before anything is
	// sent. No ranges: no restriction. Mooncake peers before 0.3.12 check nothing themselves. Errors: ErrInvalid for a range that is empty,
	// overflows, or overlaps another.
	Restrict(peer string, ranges []Range) error
	// Probe asks whether a peer's engine answers. Errors: ErrInvalid, ErrPeerGone, ErrTimeout, ErrProtocol, ErrCanceled with ctx, ErrClosed.
	Probe(ctx context.Context, peer string) error
	// Close refuses everything new, ends everything under way, seals all leases, and waits until nothing touches registered memory or any
	// source; with ctx's error if that comes first, and then the memory must stay. Called again it waits again.
	Close(ctx context.Context) error
}
