// Package registry says who is where.
//
// kvferry's own registry is [Store]: instances of both sides under leases, with watchers; [Store.Handler] serves it, [Remote] is its client.
//
// For SGLang, a bootstrap server is one prefill instance at one address. [Bootstrap] is that server, byte-compatible with release 0.5.23 but
// for the differences that its comment lists: the table of ranks, the room → data-parallel rank map, and health, which is true only while the
// instance works. [Client] is the side that asks, and the one that announces ranks; [Cache] remembers answers; [CheckCompatible] judges them.
// A kvferry instance also answers [InstancePath], which a native decode reads in place of all the others.
//
// Nothing here belongs on the path that schedules rooms: every call that talks to a peer may take as long as its context and its time limit
// allow. Handlers block for nobody but watchers, who wait at most 30 s.
//
// # Concurrency
//
// Everything is safe for concurrent use unless its comment says otherwise. No goroutine outlives the call that started it, except the timer
// of a Store, which [Store.Close] ends. [Remote.Keep], [Remote.Watch], [Store.Watch] and [Cache.Poll] are loops that the caller runs and ends
// by their context. No lock is held across a call of the owner's functions or across I/O.
package registry
