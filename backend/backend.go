// Package backend is what the dialects of SGLang's transfer backends have in common: a [Dialect] turns the messages of one backend into
// events of package node, and the node's actions into messages. Dialects are pure: they hold no state and do no I/O, and are safe for
// concurrent use.
package backend

import (
	"errors"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// Errors of a Dialect's readers. A reader's caller drops the message, counts it by kind, and goes on.
var (
	ErrMalformed = errors.New("malformed message") // of a known kind, but broken
	ErrUnknown   = errors.New("unknown message")   // of no known kind
	ErrUnwanted  = errors.New("unwanted message")  // known and sound, but not used on this side
)

// Region is memory of a decode rank as its peers address it: page n begins at Base + n × Item.
type Region struct {
	Base uint64
	Item int // bytes
}

// Introduction is what a decode rank tells a prefill rank about itself, once per pair.
type Introduction struct {
	Host       string // control socket, without brackets
	Port       int
	Session    string // name of its memory: what the data plane dials
	KV, Aux    []Region
	State      [][]Region
	EngineRank int // TP rank within the instance
	TPSize     int
	LayerIDs   []uint32 // one per KV region, or none
	Native     []byte   // descriptor of a kvferry instance, JSON; nil for a foreign peer
}

// From is what is known of a message's sender by its connection.
type From struct {
	Instance room.InstanceID // zero: foreign
	Remote   string
}

// Dialect reads and writes the control messages of one backend. Frames passed in are not kept.
type Dialect interface {
	Name() string

	// ReadPrefill reads what came to a prefill rank. For a registration it returns the Introduction and no event. kind names the message
	// for counters, also when there is an error.
	ReadPrefill(frames [][]byte, from From) (ev node.Event, in *Introduction, kind string, err error)

	// ReadDecode reads what came to a decode rank.
	ReadDecode(frames [][]byte, from From) (ev node.Event, kind string, err error)

	// Registration writes an Introduction; Native goes along when native.
	Registration(in *Introduction, native bool) [][]byte

	// Metadata, Status, Abort, … write the node's actions. self is the Introduction of the sending decode rank; a.Pages, a.Aux and a.State
	// hold the numbers for the wire, virtual where the engine has such.
	Metadata(a node.SendMetadata, self *Introduction) [][]byte
	Abort(a node.SendAbort, self *Introduction) [][]byte
	Status(a node.SendStatus) [][]byte
	Ack(a node.SendAck) [][]byte
	Quiescent(a node.SendQuiescent) [][]byte
	Refused(a node.SendRefused) [][]byte
	Receipt(a node.SendReceipt) [][]byte
	Queued(a node.SendQueued) [][]byte
	Goodbye(a node.SendGoodbye) [][]byte
}
