// Package worker is an instance: an HTTP API, the ranks of a model in one process, and a scheduler that prefills in chunks (prefill) or decodes
// a batch continuously (decode). A request reaches it as one leg of two, with the fields bootstrap_host, bootstrap_port and bootstrap_room by
// which the legs meet.
//
// A request that finds no free pages waits in arrival order; it does not fail. Pages for all that a request may generate are taken when it
// is admitted, so that a running one never lacks them.
//
// # Goroutines
//
// Run is the scheduler and the only caller of the model. Each HTTP request has its own; each ended request has one that waits for its room to
// leave the tables. Worker.mu guards the lists; it is never held while the model computes or a rank's lock is taken.
package worker
