package node

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvferry/kvferry/room"
)

// each runs a scenario over shapes, kinds of peers and seeds.
func each(t *testing.T, f func(t *testing.T, w *world)) {
	for _, native := range []bool{true, false} {
		for _, shape := range [][2]int{{1, 1}, {2, 1}, {1, 2}, {2, 2}} {
			name := map[bool]string{true: "native", false: "foreign"}[native]
			t.Run(name+"-"+string(rune('0'+shape[0]))+"-"+string(rune('0'+shape[1])), func(t *testing.T) {
				for seed := range uint64(8) {
					w := newWorld(t, seed, shape[0], shape[1], native)
					f(t, w)
					if t.Failed() {
						t.Fatalf("seed %d", seed)
					}
				}
			})
		}
	}
}

func TestHandOff(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for id := room.ID(1); id <= 3; id++ {
			w.open(id, true)
			w.send(id)
		}
		w.run()
		for id := room.ID(1); id <= 3; id++ {
			w.expect(id, room.Success, 0, 0)
		}
		w.end(1, 2, 3)
		w.noWithheld()
	})
}

func TestMetadataBeforeSender(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for j := range w.d {
			w.stepD(j, OpenReceive{7, room.Epoch(j + 1)})
			var ts []Target
			for i := range w.p {
				ts = append(ts, Target{Endpoint: pEnd(i), Rank: i, Required: len(w.d)})
			}
			w.stepD(j, Routed{7, ts})
			w.post(j, 7, 3)
		}
		w.run()
		for i := range w.p {
			w.stepP(i, OpenSend{7})
		}
		w.send(7)
		w.run()
		w.expect(7, room.Success, 0, 0)
		w.end(7)
	})
}

func TestChunksBeforeMetadata(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.open(7, false)
		w.send(7)
		w.run()
		for j := range w.d {
			w.post(j, 7, 3)
		}
		w.run()
		w.expect(7, room.Success, 0, 0)
		w.end(7)
	})
}

func TestWriteFails(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.open(7, true)
		w.run()
		w.failNext = 1000
		w.send(7)
		w.run()
		dCode := room.PeerFailed
		if !w.inst[dEnd(0)].IsZero() {
			dCode = room.TransferFailed // the first cause travels between native peers
		}
		w.expect(7, room.Failed, 0, dCode)
		w.end(7)
	})
}

func TestPrefillFails(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.open(7, true)
		w.run()
		for i := range w.p {
			w.stepP(i, Fail{7, room.NewCause(room.ClientGone, room.Prefill, "", "")})
		}
		w.run()
		w.expect(7, room.Failed, room.ClientGone, 0)
		w.end(7)
		w.noWithheld()
	})
}

func TestDecodeAborts(t *testing.T) {
	for _, when := range []string{"opened", "posted", "published", "writing", "settled"} {
		t.Run(when, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				w.open(7, when != "opened")
				if when != "posted" {
					w.run()
				}
				w.hold = when == "writing"
				if when == "writing" || when == "settled" {
					w.send(7)
				}
				if when == "settled" {
					w.run()
				}
				for j := range w.d {
					w.stepD(j, Fail{7, room.NewCause(room.Aborted, room.Decode, "", "")})
				}
				w.run()
				for j := range w.d {
					if w.quiet[who(room.Decode, j, 7)] == "" {
						t.Errorf("decode %d: pages are not free although its engine seals", j)
					}
				}
				for _, f := range w.held {
					f()
				}
				w.run()
				if when == "settled" {
					w.expect(7, room.Success, 0, 0)
				} else {
					w.expect(7, room.Failed, 0, room.Aborted)
				}
				w.end(7)
				w.noWithheld()
			})
		})
	}
}

func TestKilled(t *testing.T) {
	for _, when := range []string{"opened", "published", "writing"} {
		for _, victim := range []string{pEnd(0), dEnd(0)} {
			t.Run(when+victim[5:7], func(t *testing.T) {
				each(t, func(t *testing.T, w *world) {
					w.open(7, when != "opened")
					w.run()
					w.hold = when == "writing"
					if w.hold {
						w.send(7)
					}
					w.kill(victim)
					for _, f := range w.held {
						f()
					}
					w.run()
					if victim == pEnd(0) {
						for j := range w.d {
							if got := w.cause[who(room.Decode, j, 7)].Code; got != room.PeerDead {
								t.Errorf("decode %d: %v", j, got)
							}
						}
					} else if when != "opened" {
						for i := range w.p {
							if got := w.cause[who(room.Prefill, i, 7)].Code; got != room.PeerDead {
								t.Errorf("prefill %d: %v", i, got)
							}
						}
					}
					w.end(7)
				})
			})
		}
	}
}

func TestSilent(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.open(7, true)
		w.run()
		w.cut[pEnd(0)] = true
		w.pass(3 * time.Second)
		for j := range w.d {
			if got := w.cause[who(room.Decode, j, 7)].Code; got != room.PeerSilent {
				t.Errorf("decode %d: %v", j, got)
			}
		}
		for j := range w.d { // it stays, since it may still write to what it was told
			if c := w.d[j].Counts(); c.Peers != len(w.p) || c.UnprovenGenerations != 1 {
				t.Errorf("decode %d keeps %d peers and %d generations", j, c.Peers, c.UnprovenGenerations)
			}
		}
		w.cut[pEnd(0)] = false
		w.pass(TickInterval)
		w.end(7)
		w.noWithheld()
		w.open(8, true) // a new room after the silence works
		w.send(8)
		w.run()
		w.expect(8, room.Success, 0, 0)
		w.end(8)
	})
}

// Time in which a rank itself stood still is nobody's silence and no room's delay, however long it was.
func TestOwnPauseCondemnsNobody(t *testing.T) {
	for _, before := range []time.Duration{0, time.Second} { // 0: not even one tick has passed
		for _, pause := range []time.Duration{5 * time.Second, 20 * time.Second, 20 * time.Minute} {
			t.Run(fmt.Sprint(before, pause), func(t *testing.T) {
				w := newWorld(t, 1, 1, 1, true)
				w.open(7, true)
				w.run()
				w.stepP(0, StillQueued{})
				w.run()
				w.pass(before)
				w.now = w.now.Add(pause) // stopped and continued
				w.stepD(0, Tick{})
				w.stepP(0, Tick{})
				w.pass(time.Second)
				w.send(7)
				w.run()
				w.expect(7, room.Success, 0, 0)
				w.end(7)
			})
		}
	}
}

// A room that was found while the old instance was gone and the new one not met yet is the new one's; one that was found before is lost.
func TestRoomFoundBetweenTwoInstances(t *testing.T) {
	w := newWorld(t, 1, 1, 1, true)
	w.open(7, false)
	w.run()
	w.p[0] = NewPrefill(Config{Pages: 64})
	w.inst[pEnd(0)] = room.InstanceID{9}
	w.stepD(0, PeerDown{pEnd(0), "EOF"})
	w.open(8, true)
	w.stepD(0, PeerUp{pEnd(0), w.inst[pEnd(0)]})
	w.stepP(0, PeerUp{dEnd(0), w.inst[dEnd(0)]})
	w.run()
	if got := w.cause[who(room.Decode, 0, 7)].Code; got != room.PeerRestarted {
		t.Errorf("the room from before: %v", got)
	}
	w.send(8)
	w.run()
	w.expect(8, room.Success, 0, 0)
	w.end(7, 8)
	w.noWithheld()
}

// Deadlines of rooms that have ended do not pile up until they would have been due.
func TestDeadlinesOfEndedRoomsGo(t *testing.T) {
	w := newWorld(t, 1, 1, 1, true)
	for id := room.ID(100); id < 5000; id++ {
		w.open(id, true)
		w.run()
		w.send(id)
		w.run()
		w.end(id)
		if id%500 == 0 {
			w.pass(TickInterval)
		}
	}
	w.open(7, false)
	w.pass(TickInterval)
	for _, n := range []int{len(w.p[0].timers), len(w.d[0].timers)} {
		if n > 1024+4 {
			t.Errorf("%d deadlines beside one room", n)
		}
	}
	w.pass(301 * time.Second) // those of rooms that are there stay
	if s, c := w.verdictOf(room.Prefill, 7); s != room.Failed || c != room.Timeout {
		t.Errorf("%v %v, want a failure by its deadline", s, c)
	}
}

func TestRestartOnTheSameAddress(t *testing.T) {
	w := newWorld(t, 1, 1, 1, true)
	w.open(7, true)
	w.run()
	w.p[0] = NewPrefill(Config{Pages: 64})
	w.inst[pEnd(0)] = room.InstanceID{9}
	w.stepD(0, PeerDown{pEnd(0), "EOF"})
	w.stepD(0, PeerUp{pEnd(0), w.inst[pEnd(0)]})
	w.run()
	if got := w.cause[who(room.Decode, 0, 7)].Code; got != room.PeerRestarted {
		t.Fatalf("old room: %v", got)
	}
	w.end(7)
	w.noWithheld()
	w.open(8, true)
	w.send(8)
	w.run()
	w.expect(8, room.Success, 0, 0)
	w.end(8)
}

func TestDeadlines(t *testing.T) {
	w := newWorld(t, 1, 1, 1, true)
	w.stepP(0, OpenSend{7})
	w.stepD(0, OpenReceive{7, 1})
	w.pass(16 * time.Second)
	if c := w.cause[who(room.Decode, 0, 7)]; c.Code != room.Timeout {
		t.Errorf("rendezvous: %v", c)
	}
	w.pass(300 * time.Second)
	if c := w.cause[who(room.Prefill, 0, 7)]; c.Code != room.Timeout {
		t.Errorf("bootstrap: %v", c)
	}
	w.end(7)
}

func TestSuccessWithoutTheBytesIsAFailure(t *testing.T) {
	w := newWorld(t, 1, 1, 1, false)
	w.open(7, true)
	w.run()
	w.stepD(0, StatusHeard{Room: 7, Rank: 0, Status: room.Success})
	w.pass(3 * time.Second)
	if c := w.cause[who(room.Decode, 0, 7)]; c.Code != room.Incomplete {
		t.Errorf("%v", c)
	}
	w.end(7)
}

func TestStrangersAndRepeats(t *testing.T) {
	w := newWorld(t, 1, 2, 1, false)
	w.open(7, true)
	w.run()
	for range 5 {
		w.stepD(0, StatusHeard{Room: 7, Rank: 1, Status: room.Success})
		w.stepD(0, StatusHeard{Room: 7, Rank: 5, Status: room.Success})
		w.stepD(0, StatusHeard{Room: 99, Rank: 0, Status: room.Success})
		w.stepD(0, StatusHeard{Room: 7, Rank: 9, Status: room.Failed})
		w.stepD(0, StatusHeard{Room: 7, Epoch: 12345, Rank: 0, Status: room.Failed})
	}
	if s := w.verdict[who(room.Decode, 0, 7)]; s.Terminal() {
		t.Fatalf("verdict %v from strangers and repeats", s)
	}
	w.send(7)
	w.run()
	w.expect(7, room.Success, 0, 0)
	w.end(7)
}

// A foreign decode may reuse its pages as soon as it hears Failed, so it hears nothing while a write is under way, and nothing at all when
// the write does not settle in time.
func TestForeignDecodeIsToldAfterTheWritesHaveSettled(t *testing.T) {
	for _, late := range []bool{false, true} {
		w := newWorld(t, 1, 1, 1, false)
		w.open(7, true)
		w.run()
		w.hold = true
		w.send(7)
		w.stepP(0, Fail{7, room.NewCause(room.Aborted, room.Prefill, "", "")})
		w.run()
		if s := w.verdict[who(room.Decode, 0, 7)]; s != room.WaitingForInput {
			t.Fatalf("decode: %v while writes are under way", s)
		}
		if late {
			w.pass(6 * time.Second)
		}
		for _, f := range w.held {
			f()
		}
		w.run()
		if s := w.verdict[who(room.Decode, 0, 7)]; (s == room.Failed) == late {
			t.Errorf("late %v: decode %v", late, s)
		}
		w.stepD(0, Fail{7, room.NewCause(room.Aborted, room.Decode, "", "")})
		w.run()
		w.end(7)
		if got := w.d[0].Counts().UnprovenGenerations; (got == 1) != late {
			t.Errorf("late %v: %d generations withheld", late, got)
		}
	}
}

func TestAbortOvertakesItsRequest(t *testing.T) {
	w := newWorld(t, 1, 1, 1, true)
	w.stepP(0, AbortHeard{Room: 7, Epoch: 5, Endpoint: dEnd(0), Cause: room.NewCause(room.ClientGone, room.Decode, "", "")})
	w.stepP(0, OpenSend{7})
	if c := w.cause[who(room.Prefill, 0, 7)]; c.Code != room.ClientGone {
		t.Errorf("%v", c)
	}
	w.end(7)
	w.open(7, true) // the number is used again by a sender that opens after the tombstone was used
	w.send(7)
	w.run()
	w.expect(7, room.Success, 0, 0)
	w.end(7)
}

func TestLateMetadataIsAnsweredWithTheFirstCause(t *testing.T) {
	for _, native := range []bool{true, false} {
		w := newWorld(t, 1, 1, 1, native)
		w.stepP(0, OpenSend{7})
		w.stepP(0, Fail{7, room.NewCause(room.Exhausted, room.Prefill, "", "first")})
		w.stepP(0, Clear{7})
		w.stepD(0, OpenReceive{7, 1})
		w.stepD(0, Routed{7, []Target{{Endpoint: pEnd(0), Required: 1}}})
		w.post(0, 7, 3)
		w.run()
		want := room.PeerFailed
		if native {
			want = room.Exhausted
		}
		if c := w.cause[who(room.Decode, 0, 7)]; c.Code != want {
			t.Errorf("native %v: %v", native, c)
		}
		w.end(7)
	}
}

func TestMisuse(t *testing.T) {
	p, d := NewPrefill(Config{Pages: 4}), NewDecode(Config{Pages: 4, Virtual: true})
	now := time.Unix(0, 0)
	step := func(n interface {
		Step(time.Time, Event) ([]Action, error)
	}, ev Event, want error) {
		t.Helper()
		if _, err := n.Step(now, ev); !errors.Is(err, want) {
			t.Errorf("%T: %v, want %v", ev, err, want)
		}
	}
	step(p, OpenSend{1}, nil)
	step(p, OpenSend{1}, ErrDuplicate)
	step(p, Chunk{Room: 2}, ErrUnknownRoom)
	step(p, Chunk{Room: 1, Pages: []int32{4}}, ErrPages)
	step(p, Chunk{Room: 1, Pages: []int32{-1}}, ErrPages)
	step(p, Chunk{Room: 1, Pages: []int32{1}, Last: true}, nil)
	step(p, Chunk{Room: 1, Pages: []int32{2}}, ErrAfterLast)
	step(p, Post{}, ErrEvent)
	step(d, OpenReceive{1, 1}, nil)
	step(d, OpenReceive{1, 2}, ErrDuplicate)
	step(d, Post{Room: 2}, ErrUnknownRoom)
	step(d, Post{Room: 1, Pages: []int32{9}}, ErrPages)
	step(d, Post{Room: 1, Pages: []int32{3}}, nil)
	step(d, Post{Room: 1, Pages: []int32{3}}, ErrPosted)
	step(d, Chunk{}, ErrEvent)
}

func TestGenerationsRunOut(t *testing.T) {
	d := NewDecode(Config{Pages: 8, Slots: 1 << 29, Virtual: true}) // 2^31 / 2^29 - 1 = 3 generations
	now := time.Unix(0, 0)
	for id := room.ID(1); id <= 4; id++ {
		_, _ = d.Step(now, OpenReceive{id, room.Epoch(id)})
		_, err := d.Step(now, Post{Room: id, Pages: []int32{int32(id)}})
		if id <= 3 && err != nil || id == 4 && !errors.Is(err, ErrNoGeneration) {
			t.Errorf("room %d: %v", id, err)
		}
	}
	_, _ = d.Step(now, Fail{2, room.NewCause(room.Aborted, room.Decode, "", "")})
	_, _ = d.Step(now, LeaseIdle{2, 2})
	if _, err := d.Step(now, Post{Room: 4, Pages: []int32{4}}); err != nil {
		t.Errorf("a generation that no peer has seen is not used again: %v", err)
	}
}

func TestSameSeedSameTrace(t *testing.T) {
	trace := func(seed uint64) uint64 {
		w := newWorld(t, seed, 2, 2, true)
		for id := room.ID(1); id < 6; id++ {
			w.open(id, true)
			w.send(id)
		}
		for range 20 {
			w.one()
		}
		w.stepD(0, Fail{3, room.NewCause(room.Aborted, room.Decode, "", "")})
		w.kill(pEnd(1))
		w.pass(time.Second)
		return w.trace
	}
	if a, b := trace(5), trace(5); a != b {
		t.Errorf("the same seed gave %x and %x", a, b)
	}
	if trace(5) == trace(6) {
		t.Error("two seeds gave the same trace: the hash sees nothing")
	}
}

func TestLedger(t *testing.T) {
	l := NewLedger(4)
	a, _ := l.Alloc(nil, 3)
	if len(a) != 3 || a[0] != 0 || l.Free() != 1 {
		t.Fatalf("%v, %d free", a, l.Free())
	}
	if _, ok := l.Alloc(nil, 2); ok || l.Free() != 1 {
		t.Error("more pages than there are")
	}
	l.Hold([]int32{0, 3}) // 3 is free, and is taken out of the pool by the hold
	if l.Free() != 0 {
		t.Errorf("%d free", l.Free())
	}
	if err := l.Release(a); err != nil || l.Free() != 2 {
		t.Errorf("%v, %d free: page 0 has another holder", err, l.Free())
	}
	if err := l.Release([]int32{0, 3}); err != nil || l.Free() != 4 {
		t.Errorf("%v, %d free", err, l.Free())
	}
	if err := l.Release([]int32{0}); !errors.Is(err, ErrPages) {
		t.Errorf("double release: %v", err)
	}
	if err := l.Release([]int32{7}); !errors.Is(err, ErrPages) {
		t.Errorf("page outside: %v", err)
	}
	seen := map[int32]bool{}
	all, ok := l.Alloc(nil, 4)
	for _, p := range all {
		seen[p] = true
	}
	if !ok || len(seen) != 4 {
		t.Errorf("a page was given out twice: %v", all)
	}
}
