package handoff

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/room"
)

// storm is how long it may take until pages are usable again after everything was aborted; a test's machine may be busy.
const storm = 20 * time.Second

// TestAbortStorm aborts 10,000 rooms at once, from either side, of which decode had pages for eight: all pages are usable again, the rooms that
// nobody aborted finish, and nothing is left.
func TestAbortStorm(t *testing.T) {
	for _, from := range []room.Side{room.Prefill, room.Decode} {
		t.Run(fmt.Sprint("from ", from), func(t *testing.T) {
			x := newPair(t, 1, 1, 1, 1, kvlayout.HeadMajor)
			took := x.storm(10_000, from)
			t.Logf("all pages were usable again after %v", took)
		})
	}
}

// storm opens rooms, posts pages for eight of them, aborts all but those that follow, and returns how long it took until every page had
// been taken anew.
func (x *pair) storm(rooms int, from room.Side) time.Duration {
	t := x.t
	pool := x.d[0].Pages()
	var aborted, kept []Half
	for i := range rooms {
		tx, rx := x.open(room.ID(10 + i))
		if i < 8 {
			pages, ok := pool.Alloc(testPages / 8)
			if !ok {
				t.Fatal("no pages")
			}
			if err := rx[0].Post(Destination{Pages: pages, Aux: 0}); err != nil {
				t.Fatal(err)
			}
			if err := pool.Release(pages); err != nil { // from here on the room alone holds them
				t.Fatal(err)
			}
			wait(t, "metadata", tx[0].Ready())
			if err := tx[0].Chunk(Chunk{Pages: []int32{int32(i)}, Aux: 0}); err != nil { // half of what decode waits for
				t.Fatal(err)
			}
		}
		aborted = append(aborted, tx[0], rx[0])
	}
	for i := range 20 { // rooms that go on
		tx, rx := x.open(room.ID(1_000_000 + i))
		kept = append(kept, tx[0], rx[0])
	}
	begin := time.Now()
	for _, h := range aborted {
		if _, sends := h.(*Sender); sends == (from == room.Prefill) {
			h.Abort(room.NewCause(room.Aborted, from, "", "storm"))
		}
		h.Clear()
	}
	var all []int32
	for deadline := time.Now().Add(storm); ; {
		freed := pool.Freed()
		var ok bool
		if all, ok = pool.Alloc(testPages); ok {
			break
		}
		select {
		case <-freed:
		case <-time.After(time.Until(deadline)):
			t.Fatalf("%d of %d pages are free", pool.Free(), testPages)
		}
	}
	took := time.Since(begin)
	if err := pool.Release(all); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(kept); i += 2 {
		tx, rx := kept[i].(*Sender), kept[i+1].(*Receiver)
		if err := rx.Post(Destination{Pages: []int32{1}, Aux: 0}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Chunk(Chunk{Pages: []int32{2}, Aux: 0, Last: true}); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range kept {
		wait(t, "verdict", h.Done())
		if v := h.Verdict(); !v.OK() {
			t.Errorf("room %d, which nobody aborted: %v", h.Room(), v)
		}
		h.Clear()
	}
	for _, h := range append(aborted, kept...) {
		wait(t, "cleared", h.(interface{ Cleared() <-chan struct{} }).Cleared())
	}
	for _, c := range []Counts{x.p[0].Counts(), x.d[0].Counts()} {
		if c.Rooms+c.Unserved+c.Writes+c.Halves+c.Quarantined != 0 || c.PagesFree != c.Pages {
			t.Errorf("left: %+v", c)
		}
	}
	return took
}
