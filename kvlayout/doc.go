// Package kvlayout is the geometry of a hand-off: which prefill rank sends which layers, heads and pages to which decode rank, and at which
// bytes of the registered regions they lie.
//
//	Ranks     which prefill ranks a decode rank talks to, which of them get dummy metadata, how many answers it waits for
//	Geometry  how the KV memory of one rank is laid out; Compatible says whether two of them can be paired
//	Plan      what one prefill rank copies to one decode rank: pages of both sides in, byte fragments out
//	Window    which entries of decode's page list a chunk of prefill fills
//
// Words. A stage is the layers [Start, End) of one pipeline rank. A region is the K or the V of one layer: page n begins at n × item length.
// A rank registers the K regions of its stage in the order of the layers, then the V regions; with latent attention (MLA) there is one
// region per layer, the same on every tensor-parallel rank. When there are more tensor-parallel ranks than KV heads, several ranks hold the
// same head: they are replicas of each other, and one of them, the first of those a decode rank talks to, is its source.
//
// Where SGLang's code decides something, its answers (0.5.23) are the tests; the exceptions are said where they are made.
//
// The package is pure: no I/O, clock, lock or goroutine. A Plan and a Geometry may be used by any number of goroutines at once.
package kvlayout
