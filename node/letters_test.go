package node

import (
	"testing"
	"time"

	"github.com/kvferry/kvferry/room"
)

func pair(t *testing.T) *world {
	w := newWorld(t, 1, 1, 1, true)
	w.open(7, true)
	w.run()
	return w
}

func (w *world) verdictOf(side room.Side, id room.ID) (room.Status, room.Code) {
	k := who(side, 0, id)
	return w.verdict[k], w.cause[k].Code
}

// rejoin breaks the connections between the two and lets them come back to the same instances.
func (w *world) rejoin() {
	w.stepD(0, PeerDown{pEnd(0), "reset"})
	w.stepP(0, PeerDown{dEnd(0), "reset"})
	w.stepD(0, PeerUp{pEnd(0), w.inst[pEnd(0)]})
	w.stepP(0, PeerUp{dEnd(0), w.inst[dEnd(0)]})
	w.run()
}

// A word that is lost is said again, after a pause or when the connection is back, until it is acknowledged, and heard once.
func TestLostWords(t *testing.T) {
	for _, from := range []string{"prefill", "decode"} {
		for _, how := range []string{"pause", "rejoin"} {
			t.Run(from+" "+how, func(t *testing.T) {
				w := pair(t)
				w.cut[pEnd(0)] = true // whatever is under way between the two is lost
				if from == "prefill" {
					w.stepP(0, Fail{7, room.NewCause(room.ClientGone, room.Prefill, "", "")})
				} else {
					w.stepD(0, Fail{7, room.NewCause(room.ClientGone, room.Decode, "", "")})
				}
				w.run()
				w.cut[pEnd(0)] = false
				if p, d := w.p[0].Counts().Unacknowledged, w.d[0].Counts().Unacknowledged; p+d == 0 {
					t.Fatal("nothing waits for an acknowledgement")
				}
				if how == "pause" {
					w.pass(firstRepeat + TickInterval)
				} else {
					w.rejoin()
				}
				for _, side := range []room.Side{room.Prefill, room.Decode} {
					if s, c := w.verdictOf(side, 7); s != room.Failed || c != room.ClientGone {
						t.Errorf("%v: %v %v", side, s, c)
					}
				}
				w.end(7)
				w.noWithheld()
				if p, d := w.p[0].Counts().Unacknowledged, w.d[0].Counts().Unacknowledged; p+d != 0 {
					t.Errorf("%d and %d messages are not acknowledged", p, d)
				}
			})
		}
	}
}

// A peer that never acknowledges costs memory for as long as a tombstone lives, and no longer.
func TestLettersExpire(t *testing.T) {
	w := pair(t)
	w.cut[dEnd(0)] = true
	w.p[0].cfg.CondemnAfter = -1
	w.stepP(0, Fail{7, room.NewCause(room.ClientGone, room.Prefill, "", "")})
	w.pass(TombstoneLife + 2*lastRepeat)
	if n := w.p[0].Counts().Unacknowledged; n != 0 {
		t.Errorf("%d letters", n)
	}
}

// Published pages that a broken connection has lost are published again; prefill takes them once, whether it has them or not, and does not
// take a room up again that it has finished.
func TestMetadataSurvivesTheConnection(t *testing.T) {
	for _, lost := range []bool{true, false} {
		w := newWorld(t, 1, 1, 1, true)
		w.open(7, false)
		w.run()
		w.cut[dEnd(0)] = lost
		w.post(0, 7, 3)
		w.run()
		w.cut[dEnd(0)] = false
		w.rejoin()
		w.send(7)
		w.run()
		w.expect(7, room.Success, 0, 0)
		w.end(7)
		w.noWithheld()
	}
	w := pair(t)
	w.cut[dEnd(0)] = true // P's Success does not arrive
	w.send(7)
	w.run()
	w.stepP(0, Clear{7})
	w.cut[dEnd(0)] = false
	w.rejoin()
	w.expect(7, room.Success, 0, 0)
	w.end(7)
}

func TestGoodbye(t *testing.T) {
	for _, leaver := range []string{"prefill", "decode"} {
		w := pair(t)
		leave := Leave{room.NewCause(room.Draining, room.Gateway, "", "rolling update")}
		if leaver == "prefill" {
			w.stepP(0, leave)
		} else {
			w.stepD(0, leave)
		}
		w.run()
		for _, side := range []room.Side{room.Prefill, room.Decode} {
			if s, c := w.verdictOf(side, 7); s != room.Failed || c != room.Draining {
				t.Errorf("%s leaves, %v: %v %v", leaver, side, s, c)
			}
		}
		w.end(7)
		if leaver == "decode" {
			continue
		}
		w.open(8, true) // no new rooms
		if s, c := w.verdictOf(room.Decode, 8); s != room.Failed || c != room.Draining {
			t.Errorf("new room: %v %v", s, c)
		}
	}
}

func TestSuspect(t *testing.T) {
	w := pair(t)
	w.cut[pEnd(0)] = true
	w.pass(1200 * time.Millisecond)
	if s, _ := w.verdictOf(room.Decode, 7); s.Terminal() {
		t.Errorf("a suspect's room: %v", s)
	}
	w.stepD(0, OpenReceive{8, 1})
	w.stepD(0, Routed{8, []Target{{Endpoint: pEnd(0), Required: 1}}})
	if s, c := w.verdictOf(room.Decode, 8); s != room.Failed || c != room.Unavailable {
		t.Errorf("a new room: %v %v", s, c)
	}
	w.cut[pEnd(0)] = false
	w.pass(TickInterval)
	w.open(9, true)
	w.run()
	w.send(9)
	w.run()
	if s, _ := w.verdictOf(room.Decode, 9); s != room.Success {
		t.Errorf("after it is heard again: %v", s)
	}
}

// A room that prefill's scheduler names stays however long it waits; one that a scheduler which names rooms leaves out fails.
func TestStall(t *testing.T) {
	for _, served := range []bool{true, false} {
		w := newWorld(t, 1, 1, 1, true)
		if served {
			w.stepP(0, OpenSend{7})
		}
		w.stepD(0, OpenReceive{7, 1})
		w.stepD(0, Routed{7, []Target{{Endpoint: pEnd(0), Required: 1}}})
		w.post(0, 7, 3)
		w.run()
		for range 400 {
			w.stepP(0, StillQueued{})
			w.run()
			w.pass(time.Second)
		}
		s, c := w.verdictOf(room.Decode, 7)
		if served && s.Terminal() || !served && (s != room.Failed || c != room.Timeout) {
			t.Errorf("served %v: %v %v", served, s, c)
		}
	}
}

// Without virtual pages a failed room's pages wait for proof, then for the operator's limit if there is one.
func TestUnproven(t *testing.T) {
	for _, limit := range []time.Duration{0, time.Minute} {
		n := NewDecode(Config{Pages: 8, Unproven: limit, CondemnAfter: -1})
		now := time.Unix(1000, 0)
		var last Proof
		step := func(ev Event) {
			as, err := n.Step(now, ev)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range as {
				if q, ok := a.(Quiescent); ok {
					last = q.Proof
				}
			}
		}
		step(OpenReceive{7, 1})
		step(Routed{7, []Target{{Endpoint: pEnd(0), Required: 1}}})
		step(PeerUp{Endpoint: pEnd(0)})
		step(Post{Room: 7, Pages: []int32{1, 2}, Aux: -1})
		step(Fail{7, room.NewCause(room.Aborted, room.Decode, "", "")})
		step(LeaseIdle{7, 1})
		for range 1000 {
			now = now.Add(TickInterval)
			step(PeerHeard{pEnd(0), now})
			step(Tick{})
		}
		if limit == 0 && (last != "" || n.Ledger.Quarantined() != 2 || n.Ledger.Free() != 6) {
			t.Errorf("no limit: %q, %d in quarantine, %d free", last, n.Ledger.Quarantined(), n.Ledger.Free())
		}
		if limit != 0 && (last != ProofNone || n.Ledger.Quarantined() != 0 || n.Ledger.Free() != 8) {
			t.Errorf("limit %v: %q, %d in quarantine, %d free", limit, last, n.Ledger.Quarantined(), n.Ledger.Free())
		}
	}
}

// An abort that waits for a connection asks for an acknowledgement like any other when pages were published, else they are never proven free.
func TestAbortThatWaitsForTheConnectionIsAcknowledged(t *testing.T) {
	w := newWorld(t, 1, 1, 1, false)
	w.open(7, true)
	w.run()
	w.stepD(0, PeerDown{pEnd(0), "reset"})
	w.stepD(0, Fail{7, room.NewCause(room.ClientGone, room.Decode, "", "")})
	w.run()
	w.stepD(0, PeerUp{Endpoint: pEnd(0)})
	w.run()
	w.end(7)
	w.noWithheld()
}

// A pair that can't exchange KV fails on both sides at once, whichever of metadata and request comes first.
func TestPairThatIsTurnedAway(t *testing.T) {
	for _, native := range []bool{true, false} {
		for _, code := range []room.Code{room.Incompatible, room.Invalid} {
			for _, first := range []bool{true, false} {
				w := newWorld(t, 1, 1, 1, native)
				reg := Registration{Session: dEnd(0), Endpoint: dEnd(0), Instance: w.inst[dEnd(0)], Refused: "another layout"}
				if code == room.Invalid {
					reg.Session, reg.Refused = "another", ""
				}
				w.stepP(0, reg)
				if first {
					w.stepP(0, OpenSend{7})
				}
				w.stepP(0, Metadata{Room: 7, Session: dEnd(0), Endpoint: dEnd(0), Native: native, Epoch: map[bool]room.Epoch{true: 5}[native], Pages: []int32{1}, Aux: -1, Required: 1})
				if !first {
					w.stepP(0, OpenSend{7})
				}
				if s, c := w.verdictOf(room.Prefill, 7); s != room.Failed || c != code {
					t.Errorf("native %v, request first %v: %v %v, want %v", native, first, s, c, code)
				}
				w.stepP(0, Clear{7})
				if c := w.p[0].Counts(); c.Rooms+c.Unserved != 0 {
					t.Errorf("%+v", c)
				}
			}
		}
	}
}

// A prefill rank of which decode needs nothing has a room all the same, which waits for its metadata: it gets it also when it could not be
// reached, or may not have got it, before the room succeeded without it.
func TestDummyOfARoomThatHasSucceeded(t *testing.T) {
	for _, how := range []string{"never up", "never up, cleared", "broken"} {
		w := newWorld(t, 1, 2, 1, true)
		w.cut[pEnd(1)] = how != "broken"
		for i := range w.p {
			w.stepP(i, OpenSend{7})
		}
		w.stepD(0, OpenReceive{7, 5})
		w.stepD(0, Routed{7, []Target{{Endpoint: pEnd(0), Required: 1}, {Endpoint: pEnd(1), Rank: 1, Required: 1, Dummy: true}}})
		w.run()
		w.cut[pEnd(1)] = true // what is under way to it is lost
		w.post(0, 7, 3)
		w.run()
		w.stepD(0, Covered{7, 5})
		w.send(7)
		w.run()
		if s, _ := w.verdictOf(room.Decode, 7); s != room.Success {
			t.Fatalf("%s: decode is %v", how, s)
		}
		if how == "never up, cleared" {
			w.stepD(0, Clear{7})
		}
		w.cut[pEnd(1)] = false
		w.stepD(0, PeerDown{pEnd(1), "reset"})
		w.stepD(0, PeerUp{pEnd(1), w.inst[pEnd(1)]})
		w.run()
		if s := w.verdict[who(room.Prefill, 1, 7)]; s != room.Success {
			t.Errorf("%s: the rank that sends nothing is %v", how, s)
		}
		w.end(7)
	}
}
