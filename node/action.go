package node

import (
	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/room"
)

// WriteID numbers the writes of a prefill rank, from 1.
type WriteID uint64

// Action is an output of Step.
type Action interface{ isAction() }

// Connect opens a control connection to an endpoint and keeps it up until Disconnect.
type Connect struct{ Endpoint string }

// Disconnect gives an endpoint up.
type Disconnect struct{ Endpoint string }

// StartWrite moves Src pages of this rank to the decode rank Session, whose numbers for them are Dst (same length).
type StartWrite struct {
	Write          WriteID
	Room           room.ID
	Session        string
	Chunk          int
	Src, Dst       []int32
	Last           bool // with it go aux and state
	SrcAux, DstAux int32
	SrcState       [][]int32
	DstState       [][]int32
}

// Unregistered reports that a decode rank is not registered any more.
type Unregistered struct{ Session string }

// CancelWrite stops a write as soon as possible; WriteSettled still follows.
type CancelWrite struct{ Write WriteID }

// OpenLease admits writes to Pages and Aux under Generation.
type OpenLease struct {
	Room       room.ID
	Epoch      room.Epoch
	Generation uint32
	Pages      []int32
	Aux        int32
	State      [][]int32
}

// SealLease ends the admission; LeaseIdle follows.
type SealLease struct {
	Room  room.ID
	Epoch room.Epoch
}

// RetireLease forgets a sealed lease: its writers are proven silent, so its generation may be used again.
type RetireLease struct {
	Room  room.ID
	Epoch room.Epoch
}

// SendRegistration introduces this rank to a prefill rank.
type SendRegistration struct {
	Endpoint string
	Native   bool
}

// SendMetadata publishes this rank's pages, numbered as the lease's Generation says, to a prefill rank.
type SendMetadata struct {
	Endpoint   string
	Native     bool
	Room       room.ID
	Epoch      room.Epoch
	Generation uint32
	Pages      []int32 // physical
	Aux        int32
	State      [][]int32
	Prefix     int
	Required   int // decode ranks that the prefill rank waits for
	Dummy      bool
}

// SendStatus tells a decode endpoint the verdict of a room.
type SendStatus struct {
	Endpoint string
	Native   bool
	Room     room.ID
	Epoch    room.Epoch
	Status   room.Status
	Rank     int
	Cause    room.Cause
	Seq      uint64 // native: to be acknowledged
}

// SendQuiescent tells a native decode endpoint that all writes of this rank for the room have settled.
type SendQuiescent struct {
	Endpoint string
	Room     room.ID
	Epoch    room.Epoch
	Rank     int
	Seq      uint64 // to be acknowledged
}

// SendReceipt tells a native peer that its message Seq has come.
type SendReceipt struct {
	Endpoint string
	Room     room.ID
	Epoch    room.Epoch
	Rank     int // of this rank
	Seq      uint64
}

// SendQueued tells a native decode endpoint which of its rooms this rank's scheduler still holds.
type SendQueued struct {
	Endpoint string
	Rank     int
	Rooms    []room.ID
}

// SendGoodbye tells a native peer that this rank is about to end.
type SendGoodbye struct {
	Endpoint string
	Cause    room.Cause
}

// SendAbort tells a prefill rank that decode gave the room up.
type SendAbort struct {
	Endpoint   string
	Native     bool
	Room       room.ID
	Epoch      room.Epoch
	Generation int64 // 0: nothing was published, no acknowledgement is wanted
	Cause      room.Cause
	Seq        uint64 // native: to be acknowledged
}

// SendAck acknowledges an abort to a decode endpoint.
type SendAck struct {
	Endpoint   string
	Room       room.ID
	Rank       int
	Generation int64
}

// SendRefused answers late metadata of a native decode rank with the first cause.
type SendRefused struct {
	Endpoint string
	Room     room.ID
	Epoch    room.Epoch
	Rank     int
	Cause    room.Cause
}

// Changed reports a new status of a room to its owner. With Failed comes the first cause. On prefill, Prefix is decode's prefix in tokens,
// known from WaitingForInput on.
type Changed struct {
	Room   room.ID
	Status room.Status
	Cause  room.Cause
	Prefix int
}

// Proof says how it is known that nothing can touch a room's pages any more.
type Proof string

const (
	ProofUnpublished Proof = "never published"    // no peer ever knew the pages
	ProofSealed      Proof = "sealed"             // the receiving engine admits no write and no reader is inside
	ProofSettled     Proof = "all writes settled" // prefill: every write has ended
	ProofAcked       Proof = "acknowledged"       // every prefill rank of the room has acknowledged
	ProofSuccess     Proof = "success"            // every prefill rank has said that its writes are complete
	ProofNone        Proof = "unproven"           // the operator's limit has passed: a writer may still be at work
)

// Quiescent reports to the owner that nothing can touch the room's pages any more.
type Quiescent struct {
	Room  room.ID
	Proof Proof
}

// Quarantined reports to the owner that quiescence could not be proven within the limit: the ledger keeps the pages.
type Quarantined struct {
	Room  room.ID
	Pages int
}

// Cleared reports that the room has left every table.
type Cleared struct{ Room room.ID }

// Emit passes an event to the stream; the caller fills in the time.
type Emit struct{ Event event.Event }

func (Connect) isAction()          {}
func (Disconnect) isAction()       {}
func (StartWrite) isAction()       {}
func (CancelWrite) isAction()      {}
func (Unregistered) isAction()     {}
func (OpenLease) isAction()        {}
func (SealLease) isAction()        {}
func (RetireLease) isAction()      {}
func (SendRegistration) isAction() {}
func (SendMetadata) isAction()     {}
func (SendStatus) isAction()       {}
func (SendQuiescent) isAction()    {}
func (SendAbort) isAction()        {}
func (SendAck) isAction()          {}
func (SendReceipt) isAction()      {}
func (SendQueued) isAction()       {}
func (SendGoodbye) isAction()      {}
func (SendRefused) isAction()      {}
func (Changed) isAction()          {}
func (Quiescent) isAction()        {}
func (Quarantined) isAction()      {}
func (Cleared) isAction()          {}
func (Emit) isAction()             {}
