// Package llm is a llama forward pass in plain Go that is deterministic to the bit: logits depend neither on the tensor- or pipeline-parallel
// shape nor on the chunk size nor on what else is in a batch. So the logits of a disaggregated run can be compared with those of a single
// process.
//
// What makes them so: every dot product adds in one order, eight partial sums and a fixed tree over them; the sums that tensor-parallel ranks
// add up (after attention output and FFN down) are kept per KV-head group and added by one binary tree over the groups, whatever rank computed
// them; nothing is fused (float32(a*b)); exp, sine and cosine are the package's own; softmax runs over the positions in their order. A sampled
// token depends on the seed and the position alone.
//
// KV memory of a rank: one region for K of each layer of its stage, then one for V of each; a region is pages of [kv_head][token][dim]
// float32 in the machine's order. A page table per sequence and rank says which physical page holds which tokens. A rank reads no other
// rank's memory, and of the weights only its part.
//
// Read are GGUF files of plain llamas: F32, F16, Q4_0, Q4_1 and Q8_0, byte-level BPE, rotation without scaling. Anything else is refused by
// name.
//
// An [Instance] computes one Step at a time, on as many goroutines as there are processors, which end with the step. A [Model] and a
// [Tokenizer] may be used by any number of goroutines.
package llm
