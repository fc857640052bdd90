// Package registry says who is where.
//
// [Bootstrap] is SGLang's bootstrap server for one prefill instance, byte-compatible: the table of its ranks, the room → data-parallel rank
// map, and health, which is true only while the instance works. [Client] is decode's side of it, with [Directory] to find the ranks of a
// room. [Store] is kvferry's own registry of instances under leases, served by [Store.Handler]; [Remote] is its client.
//
// Nothing here is on the path that schedules rooms: every call that talks to a peer takes a context and has a time limit.
//
// The package starts goroutines only in [Remote.Keep] and [Remote.Watch], which end with their context. Everything is safe for concurrent
// use.
package registry
