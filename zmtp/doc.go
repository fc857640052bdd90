// Package zmtp is ZeroMQ PUSH and PULL over TCP: ZMTP 3.0 and 3.1 with the NULL mechanism, bounded everywhere and observable. It
// interoperates with libzmq in both directions.
//
// A [Pull] is bound, a [Push] is connected. What differs from libzmq: the READY command carries application properties of ours, so that
// the peer is known before any message; every queue, frame, message, property and connection has a limit; each connection tells when it
// comes up, when it goes down and why, and what it carried; a peer's silence can be read off at any time ([Peer.Stats]).
//
// # Delivery
//
// As in libzmq: messages arrive whole or not at all, in order on one connection, and at most once. A Push keeps what it was given while there is no
// connection, and takes up again with the first message that the kernel had not wholly taken when a connection ended. What the kernel had
// taken is lost with the connection; the Down event says how many messages were written to it.
//
// # Goroutines
//
// A Push owns one goroutine that dials and reads, and one more per connection that writes. A Pull owns one that accepts, and per
// connection one that reads and one that writes; a sender that finds the writer idle, and a receiver that waits for the only connection that
// talks, do that work themselves. [Push.Close] and [Pull.Close] wait for all of them. Every method is safe for concurrent
// use. There are two locks: the queue's (of a Push, or of a Pull and all its connections) and the connection's; the queue's comes first.
//
// # Wire
//
// Numbers and layouts are those of the ZeroMQ RFCs 23/ZMTP (3.0) and 37/ZMTP (3.1), written out in wire.go.
package zmtp
