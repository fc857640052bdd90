// Package node is the hand-off protocol of one rank, synchronous and pure: Step(now, event) returns the actions to carry out, in order.
//
// A rank is a [Prefill] or a [Decode]. Both keep rooms, peers, deadlines and the page [Ledger]. Everything that can be decided without
// I/O is decided here: statuses and verdicts, whom to tell, which writes to start, when pages may be reused, which peer is dead. The same
// inputs give the same actions; there is no goroutine, clock, lock or iteration over a map. The caller serialises all calls and carries
// out the actions in the order in which they come; the slice that Step returns is valid until the next call of Step.
//
// A room on prefill:
//
//	Open ─→ Bootstrapping ─ all Metadata in ─→ WaitingForInput ─ first Chunk ─→ Transferring ─ last write settled ─→ Success
//	any of them ─ write error, Abort, dead peer, deadline ─→ Failed(first cause); Quiescent once every write has settled
//
// A room on decode:
//
//	Open ─→ Bootstrapping ─ Routed ─→ WaitingForInput ─ Post: lease opened, pages published ─→ … ─ all expected Success and every byte
//	in place ─→ Success;   any ─ Failed, Abort, dead peer, deadline ─→ Failed: lease sealed; Quiescent once nothing can reach the pages
package node
