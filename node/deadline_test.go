package node

import (
	"testing"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Pages may be found before prefill is. The room has a deadline then, too, before it is routed and after.
func TestDeadlineOfARoomThatIsPostedFirst(t *testing.T) {
	for _, routed := range []bool{false, true} {
		w := newWorld(t, 1, 1, 1, false)
		w.stepD(0, OpenReceive{7, 1})
		w.post(0, 7, 3)
		limit := w.d[0].cfg.Rendezvous
		if routed {
			w.stepD(0, Routed{7, []Target{{Endpoint: pEnd(0), Required: 1}}})
			limit = w.d[0].cfg.Waiting
		}
		w.run()
		w.pass(limit - time.Second)
		if s, _ := w.verdictOf(room.Decode, 7); s.Terminal() {
			t.Errorf("routed %v: %v before the limit", routed, s)
		}
		w.pass(2 * time.Second)
		if s, c := w.verdictOf(room.Decode, 7); s != room.Failed || c != room.Timeout {
			t.Errorf("routed %v: %v %v", routed, s, c)
		}
	}
}
