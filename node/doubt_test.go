package node

import (
	"testing"

	"github.com/kvferry/kvferry/room"
)

// underway is a room whose writes have begun and not ended.
func underway(t *testing.T, native bool) *world {
	w := newWorld(t, 1, 1, 1, native)
	w.open(7, true)
	w.run()
	w.hold = true
	w.send(7)
	return w
}

func (w *world) letGo() {
	held := w.held
	w.held, w.hold = nil, false
	for _, f := range held {
		f()
	}
	w.run()
}

func (w *world) withheld(t *testing.T, when string, want int) {
	t.Helper()
	if got := w.d[0].Counts().UnprovenGenerations; got != want {
		t.Errorf("%s: %d generations are withheld, want %d", when, got, want)
	}
}

// Pages that are published again, since the connection broke, are not refused as never written to while writes to them are under way, or
// after one of them has ended so that its bytes may still land.
func TestRepeatedMetadataOfAFailedRoomIsNoProof(t *testing.T) {
	for _, doubt := range []bool{false, true} {
		w := underway(t, true)
		w.failNext, w.doubt = 2, doubt
		var again Metadata
		for _, m := range w.p[0].rooms[7].dsts {
			again = m.Metadata
		}
		w.stepP(0, Fail{7, room.NewCause(room.ClientGone, room.Prefill, "", "")})
		w.run()
		w.stepP(0, again)
		w.run()
		w.withheld(t, "while writes are under way", 1)
		w.letGo()
		want := 0
		if doubt {
			want = 1
		}
		w.withheld(t, "when they have ended", want)
		w.stepP(0, Clear{7})
		w.stepP(0, again)
		w.run()
		w.withheld(t, "when the room is gone", want)
	}
}

// A room that is over leaves its doubts behind: an abort that comes later is answered by no acknowledgement, whoever sent it and however late,
// until the memory that it is about is registered no more.
func TestDoubtOutlivesItsRoom(t *testing.T) {
	for _, native := range []bool{true, false} {
		for _, late := range []bool{false, true} {
			w := underway(t, native)
			w.failNext, w.doubt = 2, true
			w.letGo()
			w.stepP(0, Clear{7})
			w.run()
			if late {
				w.pass(2 * TombstoneLife)
			}
			w.stepD(0, Fail{7, room.NewCause(room.Aborted, room.Decode, "", "")})
			abort := AbortHeard{Room: 7, Endpoint: dEnd(0), Generation: 1, HasGeneration: true}
			if native {
				abort = AbortHeard{Room: 7, Endpoint: dEnd(0), Epoch: w.d[0].rooms[7].epoch, Seq: 99}
			}
			w.stepP(0, abort)
			w.run()
			w.withheld(t, "after the abort", 1)
			w.stepP(0, OpenSend{7}) // another life of the number does not change that
			w.stepP(0, abort)
			w.run()
			w.withheld(t, "in the next life", 1)
			w.stepP(0, PeerUp{dEnd(0), room.InstanceID{9}})
			if n := w.p[0].Counts().Doubts; n != 0 {
				t.Errorf("native %v: %d doubts about a process that is gone", native, n)
			}
		}
	}
}

// A foreign decode takes Failed for permission to reuse its pages, so it is not told while bytes of a write that failed may still land.
func TestForeignDecodeIsNotToldInDoubt(t *testing.T) {
	for _, doubt := range []bool{false, true} {
		w := underway(t, false)
		w.failNext, w.doubt = 2, doubt
		w.letGo()
		if s, _ := w.verdictOf(room.Decode, 7); (s == room.Failed) == doubt {
			t.Errorf("doubt %v: decode is %v", doubt, s)
		}
	}
}

// A write that fails because its decode rank is gone leaves no doubt behind that nothing would ever clear.
func TestNoDoubtAboutMemoryThatIsGone(t *testing.T) {
	w := underway(t, true)
	w.failNext, w.doubt = 2, true
	w.kill(dEnd(0))
	w.letGo()
	w.stepP(0, Clear{7})
	if c := w.p[0].Counts(); c.Doubts+c.Registrations+c.Rooms != 0 {
		t.Errorf("%+v", c)
	}
}
