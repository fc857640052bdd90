package worker

import (
	"testing"

	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/node"
)

func TestQuarantineLimit(t *testing.T) {
	for _, c := range []struct {
		quarantined, pages, limit int
		want                      string
	}{
		{0, 512, 10, ""}, {51, 512, 10, ""}, {52, 512, 10, "52 of 512 pages are in quarantine, limit 10 %"}, {1, 4, 25, ""}, {2, 4, 25, "2 of 4 pages are in quarantine, limit 25 %"},
		{512, 512, 100, ""},
	} {
		counts := handoff.Counts{Counts: node.Counts{Quarantined: c.quarantined}, Pages: c.pages}
		if got := quarantine(counts, c.limit); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
