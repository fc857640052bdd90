// Package tcp speaks Mooncake Transfer Engine's TCP protocol, versions 1 and 2, as initiator and as target. It interoperates with the real
// Mooncake engine; between two kvferry engines a write that is not admitted is refused with its reason.
//
// A target listens on two ports: control (JSON, one message a connection: descriptor, notify, probe) and data (24-byte header, payload,
// 8-byte status). The engine's name is host:port of the control listener. Addresses are those of package space, never real ones.
//
// # Native connections
//
// The descriptor of a kvferry target has the keys kvferry_version and kvferry_instance. An initiator that has seen them opens each data
// connection with a hello, a header of opcode 0x4b with a body of two instance ids: its own, and the one that it takes the target for. It is
// answered by a status frame; a target that is another incarnation refuses. On such a connection refusals have status codes of their own,
// the refused payload is read and dropped, and the connection goes on. A Mooncake engine never sends that opcode, and never sees it.
//
// From kvferry_version 2 on, writes carry a CRC32C of what names them and of their payload, in the header's padding or, for large payloads,
// behind the payloads of their table, so that both ends compute it of bytes that the copy has just brought into the processor's cache. A
// mismatch has a status of its own. The bytes are in place by then; the writer's failure is what keeps anybody from using them.
//
// # Target
//
// Payloads from 16 KiB on are read from the socket straight into their pages, together with the header that follows; smaller ones pass
// through a buffer, so that one system call brings many. Statuses are gathered until the socket has nothing more to read. When a lease is
// sealed while a reader waits inside it, the reader is woken by its deadline and goes on into the sink.
//
// # Initiator
//
// A batch is carried by one connection, a large one by two, and has them for itself: a batch that stalls or is cancelled takes only its own
// connections down. Connections are kept between batches, at most Config.PeerConns to a peer; a batch that finds none free waits. Requests
// are pipelined up to a window, so headers and statuses cost no round trip each. Large payloads are written from where they are, with
// vectors; small ones are copied behind their headers. A target of version 1 gets one connection for each fragment, and is taken to have
// consumed it when it ends that connection cleanly after our half close.
//
// # Goroutines
//
// Two accept; one per connection serves it; one closes connections that nobody uses. A batch has one goroutine, one more for its second
// connection, and one per connection that reads statuses while it writes, unless that is so small that the target takes it whole and is
// native; with a target of version 1, up to eight. Close ends and waits for all of them. Locks: Engine.mu before peer.mu; no lock is held while anything is sent, received or waited for.
package tcp
