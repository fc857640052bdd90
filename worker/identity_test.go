//go:build !race

package worker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/worker"
)

func TestBitIdentityEndToEnd(t *testing.T) {
	text, digests := reference(t, prompt, 12)
	for i, s := range []struct {
		p, d  llm.Geometry
		chunk int
	}{
		{llm.Geometry{}, llm.Geometry{}, 7},
		{llm.Geometry{TP: 2}, llm.Geometry{}, 32},
		{llm.Geometry{}, llm.Geometry{TP: 4, PP: 2}, 32},
		{llm.Geometry{TP: 4, PP: 3}, llm.Geometry{TP: 2, PP: 2}, 16},
		{llm.Geometry{PP: 2}, llm.Geometry{PP: 3}, 512},
	} {
		t.Run(fmt.Sprintf("%+v-%+v-%d", s.p, s.d, s.chunk), func(t *testing.T) {
			p, d := start(t, worker.Config{Side: room.Prefill, Geometry: s.p, Chunk: s.chunk}), start(t, worker.Config{Side: room.Decode, Geometry: s.d})
			pt, dt := p.Tables(), d.Tables()
			code, a := both(t, p, d, room.ID(1<<62+i), fmt.Sprintf(`"prompt":%q,"max_tokens":12,"temperature":0,"ignore_eos":true,"return_logits_digest":true`, prompt))
			if code != 200 || a.Error != nil {
				t.Fatalf("%d %+v", code, a.Error)
			}
			if a.Choices[0].Text != text || strings.Join(a.Ours.Digests, " ") != strings.Join(digests, " ") {
				t.Errorf("text %q, want %q\n%d digests equal: %v", a.Choices[0].Text, text, len(digests), strings.Join(a.Ours.Digests, " ") == strings.Join(digests, " "))
			}
			settled(t, p, pt)
			settled(t, d, dt)
		})
	}
}

func TestMoreRequestsThanPagesFully(t *testing.T) {
	t.Run("1P1D", func(t *testing.T) {
		p, d := start(t, worker.Config{Side: room.Prefill, Pages: 32, Geometry: llm.Geometry{TP: 2}}), start(t, worker.Config{Side: room.Decode, Pages: 8})
		manyRequests(t, 64, []*instance{p}, []*instance{d})
	})
	t.Run("2P2D", func(t *testing.T) {
		ps := []*instance{start(t, worker.Config{Side: room.Prefill, Pages: 32, Geometry: llm.Geometry{TP: 2}}), start(t, worker.Config{Side: room.Prefill, Pages: 32})}
		ds := []*instance{start(t, worker.Config{Side: room.Decode, Pages: 8, Geometry: llm.Geometry{TP: 4}}), start(t, worker.Config{Side: room.Decode, Pages: 8, Geometry: llm.Geometry{TP: 2, PP: 2}})}
		manyRequests(t, 64, ps, ds)
	})
}
