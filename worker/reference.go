package worker

import (
	"context"
	"encoding/hex"

	"github.com/kvferry/kvferry/llm"
)

// Digests computes the tokens *ids in one step and n more, greedily, in one instance, and returns the SHA-256 of each one's logits: what a
// disaggregated run of the same request must answer with return_logits_digest. It appends the tokens to *ids.
func Digests(ctx context.Context, in *llm.Instance, ids *[]int32, pages [][]int32, n int) []string {
	var digests []string
	pos := 0
	for range n {
		out, err := in.Step(ctx, []llm.Seq{{Tokens: (*ids)[pos:], Pos: pos, Pages: pages, Logits: true}})
		if err != nil {
			return digests
		}
		pos = len(*ids)
		d := digestOf(out[0])
		digests = append(digests, hex.EncodeToString(d[:]))
		*ids = append(*ids, llm.Sampler{}.Sample(out[0], pos))
	}
	return digests
}
