// Package tcp speaks Mooncake Transfer Engine's TCP protocol, versions 1 and 2, as initiator and as target. It interoperates with the real
// Mooncake engine; between two kvferry engines a write to a sealed range is refused with its reason.
//
// A target listens on two ports: control (JSON, one message a connection: descriptor, probe, notify) and data (24-byte header, payload,
// 8-byte status). The engine's name is host:port of the control listener. Addresses are those of package space, never real ones.
//
// # Native connections
//
// The descriptor of a kvferry target has the key kvferry_version. An initiator that has seen it opens each data connection with a hello: a
// header with opcode 0x4b, the size field helloSize and the address field helloAddr, answered by a status frame. On such a connection
// refusals have status codes of their own, the refused payload is read and dropped, and the connection goes on. A Mooncake engine never
// sends opcode 0x4b, and never sees one.
//
// # Goroutines
//
// Two accept; one per connection serves it. A batch has one goroutine that begins it, and two per connection that it uses, one writing and
// one reading statuses. Close ends and waits for all of them.
package tcp
