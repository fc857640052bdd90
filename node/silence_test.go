package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvferry/kvferry/room"
)

// A prefill rank that was taken for dead because of its silence may still write. What becomes of it later says when the pages are free: it
// refuses, another instance answers, or it is back and acknowledges when it is asked once more.
func TestWhatBecomesOfASilentPrefill(t *testing.T) {
	for _, virtual := range []bool{true, false} {
		for _, native := range []bool{true, false} {
			for _, how := range []string{"refuses", "restarts", "returns"} {
				t.Run(fmt.Sprintf("%v-%v-%s", virtual, native, how), func(t *testing.T) {
					w := newWorld(t, 1, 1, 1, native)
					w.d[0] = NewDecode(Config{Pages: 64, Coverage: true, Virtual: virtual})
					w.open(7, true)
					w.run()
					w.cut[pEnd(0)] = true
					w.pass(40 * time.Second)
					if c := w.d[0].Counts(); c.Peers != 1 || virtual && c.UnprovenGenerations != 1 || !virtual && c.Quarantined != 3 {
						t.Errorf("while it is silent: %+v", c)
					}
					w.stepD(0, OpenReceive{8, 5})
					w.stepD(0, Routed{8, []Target{{Endpoint: pEnd(0), Required: 1}}})
					if s, c := w.verdictOf(room.Decode, 8); s != room.Failed || c != room.Unavailable {
						t.Errorf("a new room: %v %v", s, c)
					}
					w.cut[pEnd(0)] = false
					switch how {
					case "refuses":
						w.kill(pEnd(0))
					case "restarts":
						w.p[0] = NewPrefill(Config{Pages: 64})
						w.inst[pEnd(0)] = room.InstanceID{9, 9}
					}
					w.pass(time.Second)
					w.end(7, 8)
					w.noWithheld()
					if c := w.d[0].Counts(); how == "refuses" && c.Peers != 0 {
						t.Errorf("%+v", c)
					}
				})
			}
		}
	}
}

// A decode rank that was taken for dead because of its silence keeps its registration, since it may go on; not when it turns out to be gone, or
// does not come back for long.
func TestWhatBecomesOfASilentDecode(t *testing.T) {
	for _, how := range []string{"refuses", "restarts", "vanishes", "returns"} {
		w := pair(t)
		w.cut[dEnd(0)] = true
		w.pass(3 * time.Second)
		want := Counts{Registrations: 1, Peers: 1}
		check := func(when string) {
			t.Helper()
			if c := w.p[0].Counts(); c.Registrations != want.Registrations || c.Peers != want.Peers {
				t.Errorf("%s, %s: %+v, want %+v", how, when, c, want)
			}
		}
		check("silent")
		switch how {
		case "refuses":
			w.stepP(0, PeerRefused{dEnd(0), "refused"})
			want = Counts{}
		case "restarts":
			w.stepP(0, PeerUp{dEnd(0), room.InstanceID{9, 9}})
			want = Counts{Peers: 1}
		case "vanishes":
			w.pass(LostLife)
			want = Counts{}
		default:
			w.cut[dEnd(0)] = false
			w.pass(time.Second)
		}
		check("then")
	}
}

// Words for a decode rank that was silent wait for it: what P owes it comes when it is back.
func TestWordsForASilentDecode(t *testing.T) {
	w := underway(t, false)
	w.stepD(0, Fail{7, room.NewCause(room.ClientGone, room.Decode, "", "")})
	w.run()
	w.cut[dEnd(0)] = true
	w.pass(3 * time.Second)
	w.cut[dEnd(0)] = false
	w.pass(time.Second)
	w.letGo()
	w.end(7)
	w.noWithheld()
}

// A registration that was under way when its process ended does not turn against the one that has taken its place.
func TestLateRegistrationOfAnOldInstance(t *testing.T) {
	w := pair(t)
	late := w.p[0].sessions[dEnd(0)]
	w.d[0] = NewDecode(Config{Pages: 64, Virtual: true, Coverage: true})
	w.inst[dEnd(0)], w.pages[dEnd(0)] = room.InstanceID{9}, map[room.ID]lease{}
	w.rejoin()
	w.stepP(0, Clear{7})
	w.open(8, true)
	w.run()
	w.stepP(0, late)
	w.send(8)
	w.run()
	w.expect(8, room.Success, 0, 0)
	if c := w.p[0].Counts(); c.Registrations != 1 {
		t.Errorf("%+v", c)
	}
}
