// Package handoff is the shell around package node: it owns sockets, timers, transfer engines and events, feeds the node of a rank and
// carries out its actions. It is what an engine's author uses:
//
//	d, err := handoff.NewDecode(ctx, cfg)      // one per rank
//	rx, err := d.Open(room, prefill)           // rendezvous; no pages yet
//	err = rx.Post(dst)                         // publishes pages
//	<-rx.Done();      v := rx.Verdict()        // Success, or Failed with its first cause; immutable
//	<-rx.Quiescent(); p := rx.Proof()          // nothing can touch dst any more, and how that is known
//	rx.Clear()                                 // the owner's interest ends
//
//	p, err := handoff.NewPrefill(ctx, cfg)
//	tx, err := p.Send(room)                    // decode makes itself known by its metadata
//	err = tx.Chunk(handoff.Chunk{Pages: …})    // as the engine computes; the pages stay readable until Quiescent
//	<-tx.Done()
//
// Done is the verdict, Quiescent the right to reuse the pages. Whoever waits for one never waits for the other, and any number may wait.
// A [Group] joins the ranks of an instance, so that a room has one verdict on all of them.
//
// # Concurrency
//
// All methods are safe for concurrent use. Each rank has two long-lived goroutines, one that receives control messages and one that ticks,
// and one goroutine for each write, route look-up and lease end under way. Lock order: rank.mu, then half.mu. No lock is held while bytes
// move, a peer is dialled, or a function of the owner runs.
package handoff
