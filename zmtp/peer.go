package zmtp

import (
	"net"
	"sync/atomic"
	"time"
)

var lastPeerID atomic.Uint64

// Peer is the other end of one connection, from READY on. It stays valid when the connection is gone. Its methods never block.
type Peer struct {
	id      uint64
	remote  net.Addr
	props   Properties
	version string
	born    time.Time
	conn    *conn

	lastIn                                     atomic.Int64 // ns since born
	bytesIn, bytesOut, messagesIn, messagesOut atomic.Uint64
	paused, down                               atomic.Bool
}

// Stats are the counts of one connection.
type Stats struct {
	Since        time.Time // when the connection was made
	LastReceived time.Time // when the last bytes came, of whatever kind; Since if none did
	BytesIn      uint64    // handshake and framing included
	BytesOut     uint64    // taken by the kernel
	MessagesIn   uint64    // whole messages read, delivered or queued
	MessagesOut  uint64    // messages the kernel has wholly taken
	// Paused: we are not reading, because a receive queue is full. LastReceived then says nothing about the peer.
	Paused bool
}

// ID names the connection; no two of this process share one.
func (p *Peer) ID() uint64 { return p.id }

// Remote is the address of the other end.
func (p *Peer) Remote() net.Addr { return p.remote }

// Properties are the application properties of the peer's READY; not to be changed. libzmq sends none.
func (p *Peer) Properties() Properties { return p.props }

// Version is the ZMTP version in use, "3.0" or "3.1".
func (p *Peer) Version() string { return p.version }

// Connected says whether the connection still stands.
func (p *Peer) Connected() bool { return !p.down.Load() }

// Stats reads the counts. Cheap: a few atomic loads.
func (p *Peer) Stats() Stats {
	return Stats{
		Since: p.born, LastReceived: p.born.Add(time.Duration(p.lastIn.Load())),
		BytesIn: p.bytesIn.Load(), BytesOut: p.bytesOut.Load(), MessagesIn: p.messagesIn.Load(), MessagesOut: p.messagesOut.Load(),
		Paused: p.paused.Load(),
	}
}

// Disconnect ends the connection with ErrDisconnected as its cause; the owner's Events is told. A Push connects again.
func (p *Peer) Disconnect() { p.conn.fail(ErrDisconnected) }
