// Package sim runs package node under a seeded network, clock, memory and fault schedule, and checks after every step what kvferry promises.
//
// A [Config] is a world: prefill and decode processes, connections between them, an engine that moves pages, owners of rooms, and a list of
// operations, which [FromSeed] draws from a seed. [Run] carries them out and returns what it found; the same Config gives the same trace
// hash. Every entity of the world (a connection, a write, a process) has a random source of its own, so that an operation that is left out
// changes little of the rest: [Shrink] uses that to cut a failing world down.
//
// A world knows the truth that its nodes have to find out: the numbers under which a room's pages are published say which life of which room
// they are for, also where no node is told. So it sees a write that reaches another room's page, a page or number that is given back while
// a write may still use it, a Success without the bytes, a cause that is not the first, a room that comes back, and tables that keep what they
// should not.
//
// The world is kinder than a real one in these points only. A process that is dead writes no more. A refused connection means a dead process
// (a proxy that refuses for a living one is outside). Processes of a world with foreign ones start again at another port, as SGLang's do. A
// room number is used again only where an epoch or the count of bytes tells its lives apart. Pages that an operator has released unproven
// are not looked at any more. And what stays in quarantine, or withheld, at the end needs a reason: a write that ended in doubt, a host that
// vanished, or a lost message on a connection whose dialect repeats none.
package sim
