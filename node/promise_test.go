package node

import (
	"testing"

	"github.com/kvferry/kvferry/room"
)

// What a prefill rank has said of a life of a room holds when its metadata comes again, also when the number has a new sender by then: after a
// refusal and after "quiescent" nothing is written, after a success there is no failure either.
func TestMetadataOfALifeThatIsOver(t *testing.T) {
	for _, how := range []string{"refused", "quiescent", "success"} {
		w := pair(t)
		m := w.p[0].rooms[7].dsts[0].Metadata
		switch how {
		case "refused":
			m.Room, m.Epoch = 8, 99
			w.stepP(0, OpenSend{m.Room})
			w.stepP(0, Fail{m.Room, room.NewCause(room.ClientGone, room.Prefill, "", "")})
			w.stepP(0, Clear{m.Room})
			w.stepP(0, m)
		case "quiescent":
			w.stepP(0, Fail{7, room.NewCause(room.ClientGone, room.Prefill, "", "")})
		default:
			w.send(7)
		}
		w.run()
		w.stepP(0, Clear{m.Room})
		w.stepP(0, OpenSend{m.Room})
		refusals := w.refusals(m)
		w.hold = true
		w.send(m.Room)
		if len(w.held) > 0 {
			t.Errorf("%s: it is written to", how)
		}
		if want := how != "success"; refusals > 0 != want {
			t.Errorf("%s: refused %d times", how, refusals)
		}
		for range 3 * MaxTombstones / 2 {
			w.p[0].promised.add(room.Epoch(w.rng.Uint64()), false, w.now)
		}
		if n := len(w.p[0].promised.at); n > MaxTombstones || n != len(w.p[0].promised.queue) {
			t.Errorf("%d promises", n)
		}
		w.pass(TombstoneLife)
		if n := w.p[0].Counts().Promises; n != 0 {
			t.Errorf("%d promises do not expire", n)
		}
	}
}

// refusals steps prefill 0 and counts what it sends that fails the room on decode.
func (w *world) refusals(ev Event) (n int) {
	as, err := w.p[0].Step(w.now, ev)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range as {
		switch a := a.(type) {
		case SendRefused:
			n++
		case SendStatus:
			if a.Status == room.Failed {
				n++
			}
		}
	}
	return n
}

// Late metadata of a room that has failed gets the room's cause, also when the decode rank's registration went with it; a life that has
// succeeded stays so whatever became of the number since.
func TestLateMetadataHasTheFirstCause(t *testing.T) {
	w := underway(t, true)
	m := w.p[0].rooms[7].dsts[0].Metadata
	w.stepP(0, Fail{7, room.NewCause(room.ClientGone, room.Prefill, "", "")})
	w.stepP(0, PeerRefused{dEnd(0), "refused"})
	as, err := w.p[0].Step(w.now, m)
	if got, ok := as[len(as)-1].(SendStatus); err != nil || !ok || got.Cause.Code != room.ClientGone {
		t.Errorf("%T%+v", as[len(as)-1], as[len(as)-1])
	}

	w = pair(t)
	m = w.p[0].rooms[7].dsts[0].Metadata
	w.send(7)
	w.run()
	w.stepP(0, Clear{7})
	w.stepP(0, OpenSend{7})
	w.stepP(0, Fail{7, room.NewCause(room.ClientGone, room.Prefill, "", "")})
	if n := w.refusals(m); n != 0 {
		t.Error("the failed life speaks for the one that has succeeded")
	}
	w.stepP(0, Clear{7})
	if n := w.refusals(m); n != 0 {
		t.Error("its tombstone speaks for the one that has succeeded")
	}
}

// The Success of a foreign prefill rank may be about an older life of the number: it proves that nothing is written any more only when every
// byte is in place.
func TestForeignSuccessAloneIsNoProofOfSilence(t *testing.T) {
	for _, covered := range []bool{false, true} {
		w := newWorld(t, 1, 1, 1, false)
		w.open(7, true)
		w.run()
		w.stepD(0, StatusHeard{Room: 7, Rank: 0, Status: room.Success})
		if covered {
			w.stepD(0, Covered{Room: 7})
		}
		w.cut[pEnd(0)] = true // so that its abort is not acknowledged
		w.stepD(0, Fail{7, room.NewCause(room.ClientGone, room.Decode, "", "")})
		w.run()
		if got := w.d[0].Counts().UnprovenGenerations; got != 1 && !covered || got != 0 && covered {
			t.Errorf("covered %v: %d generations are withheld", covered, got)
		}
	}
}

// A room that was over before it had heard of all its decode ranks refuses the others' metadata, too; a rank that it knew may begin anew.
func TestRoomIsOverForRanksThatItNeverHeardOf(t *testing.T) {
	w := newWorld(t, 1, 1, 2, true)
	w.open(7, true)
	w.run()
	ms := [2]Metadata{w.p[0].rooms[7].dsts[0].Metadata, w.p[0].rooms[7].dsts[1].Metadata}
	for i := range ms {
		ms[i].Room, ms[i].Epoch = 8, 50+room.Epoch(i)
	}
	w.stepP(0, OpenSend{8})
	w.stepP(0, ms[0])
	w.stepP(0, Fail{8, room.NewCause(room.ClientGone, room.Prefill, "", "")})
	w.stepP(0, Clear{8})
	if n := w.refusals(ms[1]); n != 1 {
		t.Errorf("the other rank is refused %d times", n)
	}
	ms[0].Epoch = 60
	if n := w.refusals(ms[0]); n != 0 || w.p[0].Counts().Unserved != 1 {
		t.Errorf("another life is refused %d times: %+v", n, w.p[0].Counts())
	}
}

// An abort is of one life: one that comes again says nothing of a request that has come since, and one of the next life is kept for it though
// an older one has just ended.
func TestAbortIsOfOneLife(t *testing.T) {
	cause := room.NewCause(room.ClientGone, room.Decode, "", "")
	for _, again := range []bool{true, false} {
		w := pair(t)
		old := AbortHeard{Room: 7, Epoch: w.p[0].rooms[7].dsts[0].Epoch, Endpoint: dEnd(0), Cause: cause, Seq: 90}
		w.stepP(0, old)
		w.stepP(0, Clear{7})
		w.run()
		if !again {
			w.stepP(0, AbortHeard{Room: 7, Epoch: old.Epoch + 2, Endpoint: dEnd(0), Cause: cause, Seq: 91})
		}
		w.stepP(0, old)
		w.stepP(0, OpenSend{7})
		if again {
			w.stepP(0, old)
		}
		if s := w.verdict[who(room.Prefill, 0, 7)]; (s == room.Failed) == again {
			t.Errorf("again %v: %v", again, s)
		}
	}
}
