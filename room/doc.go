// Package room names one request's hand-off of KV cache from a prefill to a decode worker, and holds the rules every side agrees on:
// the identity of a room, its status and the one transition rule, and the typed causes of its failure.
//
// The statuses and the rule:
//
//	               Bootstrapping(1) ─→ WaitingForInput(2) ─→ Transferring(3) ─→ Success(4)
//	absent ─→ only Bootstrapping and WaitingForInput create;   the larger value wins
//	               any of the four ─→ Failed(0), which wins and stays
//
// The package is pure: no I/O, clock, lock or goroutine. All values are safe to copy and to share.
package room
