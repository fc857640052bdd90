package node

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/internal/vectors"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/wire"
)

var statusNames = map[string]room.Status{"absent": room.Absent, "Failed": room.Failed, "Bootstrapping": room.Bootstrapping, "WaitingForInput": room.WaitingForInput,
	"Transferring": room.Transferring, "Success": room.Success}

func statusOf(t testing.TB, name string) room.Status {
	s, ok := statusNames[name]
	if !ok {
		t.Fatalf("unknown status %q", name)
	}
	return s
}

// vectorTarget is [host, port, dummy].
type vectorTarget struct {
	host  string
	port  int
	dummy bool
}

func (v *vectorTarget) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&v.host, &v.port, &v.dummy})
}

type vectorMessage struct {
	To     string   `json:"to"`
	Frames []string `json:"frames"`
}

func (m vectorMessage) String() string { return m.To + " " + strings.Join(m.Frames, ",") }

// encode writes a status as a backend's wire does. The reason is the cause's text.
func encode(backend string, a SendStatus) vectorMessage {
	var frames [][]byte
	reason := ""
	if a.Status == room.Failed {
		reason = a.Cause.Text
	}
	switch backend {
	case "mooncake":
		frames = wire.MooncakeStatus{Room: a.Room, Status: a.Status, Rank: a.Rank}.AppendFrames(nil)
	case "nixl":
		frames = wire.NixlStatus{Room: a.Room, Status: a.Status, Rank: a.Rank, Reason: reason}.AppendFrames(nil)
	case "mori":
		frames = wire.MoriStatus{Room: a.Room, Status: a.Status, Rank: a.Rank, Reason: reason}.AppendFrames(nil)
	}
	m := vectorMessage{To: a.Endpoint}
	for _, f := range frames {
		m.Frames = append(m.Frames, hex.EncodeToString(f))
	}
	return m
}

// statuses are the messages among actions.
func statuses(backend string, as []Action) (sent []string) {
	for _, a := range as {
		if s, ok := a.(SendStatus); ok {
			sent = append(sent, encode(backend, s).String())
		}
	}
	return sent
}

func strs(ms []vectorMessage) (out []string) {
	for _, m := range ms {
		out = append(out, m.String())
	}
	return out
}

// reasonOf is the cause that stands for a reason of SGLang's; its default texts are ours too where we have no cause at all.
func reasonOf(status room.Status, verdict string, reason *string) room.Cause {
	switch {
	case reason != nil:
		return room.NewCause(room.TransferFailed, room.Prefill, "", *reason)
	case verdict == "Success" && status == room.Failed:
		return room.NewCause(room.TransferFailed, room.Prefill, "", "Room marked Failed before the transfer ended")
	case verdict == "Failed":
		return room.NewCause(room.TransferFailed, room.Prefill, "", "KV transfer failed")
	}
	return room.Cause{}
}

// The rooms of the table have not concluded before, whatever their status. Deliberate difference: a Success carries no reason.
func TestConcludeVector(t *testing.T) {
	type row struct {
		Backend       string          `json:"backend"`
		Conclude      string          `json:"conclude"`
		Current       string          `json:"current"`
		FailureRecord *string         `json:"failure_record"`
		PPRank        int             `json:"pp_rank"`
		PPSize        int             `json:"pp_size"`
		Reason        *string         `json:"reason"`
		Recorded      *string         `json:"recorded"`
		Result        string          `json:"result"`
		Returned      *string         `json:"returned"`
		Room          room.ID         `json:"room,string"`
		Sent          []vectorMessage `json:"sent"`
		Targets       []vectorTarget  `json:"targets"`
		TPRank        int             `json:"tp_rank"`
		TPSize        int             `json:"tp_size"`
	}
	vectors.Each(t, "conclude", func(t testing.TB, line int, v row) {
		n := NewPrefill(Config{Rank: v.TPRank*v.PPSize + v.PPRank, Pages: 8})
		n.begin(time.Unix(0, 0))
		status := statusOf(t, v.Current)
		if v.TPRank >= v.TPSize || status == room.Absent {
			// An unknown room has no conclusion: nothing is returned, sent or recorded. (SGLang's recorded reason of the row is of no room.)
			if _, err := n.Step(time.Unix(0, 0), Fail{v.Room, reasonOf(status, "Failed", v.Reason)}); err != nil || len(n.rooms) != 0 || len(n.out) != 0 || v.Returned != nil || len(v.Sent) != 0 || v.Result != "absent" {
				t.Errorf("line %d: %v, %d rooms", line, err, len(n.rooms))
			}
			return
		}
		r := n.create(v.Room)
		r.opened, r.status = true, status
		if v.Recorded != nil {
			r.cause = room.NewCause(room.TransferFailed, room.Prefill, "", *v.Recorded)
		}
		for i, x := range v.Targets {
			r.dsts = append(r.dsts, &destination{Metadata: Metadata{Room: v.Room, Session: fmt.Sprint(i), Endpoint: wire.Addr{IP: x.host, Port: uint16(x.port)}.Endpoint(), Dummy: x.dummy}})
		}
		n.conclude(r, statusOf(t, v.Conclude), reasonOf(status, v.Conclude, v.Reason))
		if r.status != statusOf(t, v.Result) || v.Returned == nil || r.status != statusOf(t, *v.Returned) {
			t.Errorf("line %d: %v, want %v, returned %v", line, r.status, v.Result, *v.Returned)
		}
		if (v.FailureRecord == nil) != r.cause.IsZero() || v.FailureRecord != nil && r.cause.Text != *v.FailureRecord {
			t.Errorf("line %d: recorded %q, want %v", line, r.cause.Text, v.FailureRecord)
		}
		for _, m := range v.Sent {
			if r.status == room.Success && len(m.Frames) == 5 {
				m.Frames[4] = ""
			}
		}
		if got, want := statuses(v.Backend, n.out), strs(v.Sent); !slices.Equal(got, want) {
			t.Errorf("line %d: sent %v, want %v", line, got, want)
		}
	})
}

// Deliberate difference: a conclusion that repeats the last one sends nothing, where SGLang sends it again.
func TestConcludeTwiceVector(t *testing.T) {
	type row struct {
		FailureRecord *string         `json:"failure_record"`
		First         string          `json:"first"`
		Second        string          `json:"second"`
		Result        string          `json:"result"`
		Returned      []string        `json:"returned"`
		Sent          []vectorMessage `json:"sent"`
	}
	vectors.Each(t, "conclude_twice", func(t testing.TB, line int, v row) {
		n := NewPrefill(Config{Pages: 8})
		n.begin(time.Unix(0, 0))
		raw, _ := hex.DecodeString(v.Sent[0].Frames[1])
		id, err := room.ParseID(raw)
		if err != nil {
			t.Fatal(err)
		}
		r := n.create(id)
		r.opened, r.status = true, room.Transferring
		r.dsts = []*destination{{Metadata: Metadata{Room: id, Endpoint: v.Sent[0].To}}}
		texts := []string{"one", "two"}
		var got []string
		for i, verdict := range []string{v.First, v.Second} {
			n.out = n.out[:0]
			c := room.Cause{}
			if verdict == "Failed" {
				c = room.NewCause(room.TransferFailed, room.Prefill, "", texts[i])
			}
			n.conclude(r, statusOf(t, verdict), c)
			if r.status != statusOf(t, v.Returned[i]) {
				t.Errorf("line %d: conclusion %d: %v, want %s", line, i, r.status, v.Returned[i])
			}
			got = append(got, statuses("nixl", n.out)...)
		}
		want := slices.Compact(strs(v.Sent))
		if !slices.Equal(got, want) || r.status != statusOf(t, v.Result) {
			t.Errorf("line %d: %v, sent %v, want %s, %v", line, r.status, got, v.Result, want)
		}
		if (v.FailureRecord == nil) != r.cause.IsZero() || v.FailureRecord != nil && r.cause.Text != *v.FailureRecord {
			t.Errorf("line %d: recorded %q", line, r.cause.Text)
		}
	})
}

// Deliberate differences: only ranks of the expected set count, which here are those that report Success, in their order, until their number
// is reached; decode keeps the first reason; and a verdict is immutable, so what comes after it changes nothing.
func TestApplyStatusVector(t *testing.T) {
	type step struct {
		Completed     []int   `json:"completed"`
		FailureRecord *string `json:"failure_record"`
		Rank          int     `json:"rank"`
		Reason        *string `json:"reason"`
		Result        string  `json:"result"`
		Status        int     `json:"status"`
	}
	type row struct {
		Current  string `json:"current"`
		Expected *int   `json:"expected"`
		Tracked  bool   `json:"tracked"`
		Steps    []step `json:"steps"`
	}
	vectors.Each(t, "apply_status", func(t testing.TB, line int, v row) {
		n := NewDecode(Config{Pages: 8, Virtual: true})
		n.begin(time.Unix(0, 0))
		cur := statusOf(t, v.Current)
		var r *recvRoom
		if cur != room.Absent {
			r = &recvRoom{id: 7, epoch: 1, status: cur, posted: true, routed: true, published: true}
			n.rooms[7] = r
			ranks := map[int]bool{}
			for _, s := range v.Steps {
				if v.Expected != nil && s.Status == 4 && !ranks[s.Rank] && len(ranks) < *v.Expected {
					ranks[s.Rank] = true
					r.targets = append(r.targets, target{Target: Target{Endpoint: "p", Rank: s.Rank}})
				}
			}
			for extra := 100; v.Expected != nil && len(r.targets) < *v.Expected; extra++ { // ranks that never report
				r.targets = append(r.targets, target{Target: Target{Endpoint: "p", Rank: extra}})
			}
			if v.Expected == nil || !v.Tracked { // nobody knows whom to expect
				r.routed = false
			}
			// A Failed of a rank that is not expected does not count; the table has no set, so every rank that reports one belongs to it.
			for _, s := range v.Steps {
				if s.Status == 0 && !slices.ContainsFunc(r.targets, func(x target) bool { return x.Rank == s.Rank }) {
					r.targets = append(r.targets, target{Target: Target{Endpoint: "p", Rank: s.Rank}, answered: true})
				}
			}
		}
		var first *string
		for i, s := range v.Steps {
			ev := StatusHeard{Room: 7, Rank: s.Rank, Status: room.Status(s.Status)}
			if s.Status == 0 {
				text := "Failed to get kvcache from prefill instance, it might be dead"
				if s.Reason != nil {
					text = *s.Reason
				}
				ev.Cause = room.NewCause(room.PeerFailed, room.Prefill, "", text)
			}
			was := cur
			if r != nil {
				was = r.status
			}
			n.begin(time.Unix(0, 0))
			n.apply(ev)
			got := room.Absent
			if r != nil {
				got = r.status
			}
			want := statusOf(t, s.Result)
			if was.Terminal() {
				want = was
			}
			if got != want {
				t.Errorf("line %d step %d: %v, want %v", line, i, got, want)
			}
			if r == nil {
				if s.FailureRecord != nil || len(n.rooms) != 0 {
					t.Errorf("line %d step %d: an unknown room left a record", line, i)
				}
				continue
			}
			if s.FailureRecord != nil && first == nil && was != room.Success {
				first = s.FailureRecord
			}
			if (first == nil) != r.cause.IsZero() || first != nil && r.cause.Text != *first {
				t.Errorf("line %d step %d: recorded %q, want %v", line, i, r.cause.Text, first)
			}
			if v.Expected != nil && v.Tracked && !was.Terminal() {
				var answered []int
				for _, x := range r.targets {
					if x.answered && slices.ContainsFunc(v.Steps[:i+1], func(y step) bool { return y.Status == 4 && y.Rank == x.Rank }) {
						answered = append(answered, x.Rank)
					}
				}
				sort.Ints(answered)
				if !slices.Equal(answered, s.Completed) {
					t.Errorf("line %d step %d: completed %v, want %v", line, i, answered, s.Completed)
				}
			}
		}
	})
}

// ackTargetRow is [ip, port, generation].
type ackTargetRow struct {
	ip         string
	port       int
	generation int64
}

func (v *ackTargetRow) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&v.ip, &v.port, &v.generation})
}

func (v ackTargetRow) target() ackTarget {
	return ackTarget{wire.Addr{IP: v.ip, Port: uint16(v.port)}.Endpoint(), v.generation}
}

// Acknowledgements wait for the writes that are under way; of a poisoned room there is none. A number that is used again begins afresh.
func TestDeferredAckPrefillVector(t *testing.T) {
	type step struct {
		Acks        []vectorMessage `json:"acks"`
		Op          string          `json:"op"`
		Outstanding int             `json:"outstanding"`
		Poisoned    bool            `json:"poisoned"`
		Target      *ackTargetRow   `json:"target"`
		Waiting     []ackTargetRow  `json:"waiting"`
	}
	type row struct {
		PrefillRank int     `json:"prefill_rank"`
		Room        room.ID `json:"room,string"`
		Steps       []step  `json:"steps"`
	}
	vectors.Each(t, "deferred_ack_prefill", func(t testing.TB, line int, v row) {
		n := NewPrefill(Config{Rank: v.PrefillRank, Pages: 8})
		open := func() *sendRoom {
			r := n.create(v.Room)
			r.opened, r.concluded, r.quiet, r.status = true, true, true, room.Failed
			return r
		}
		r := open()
		for i, s := range v.Steps {
			n.begin(time.Unix(0, 0))
			switch s.Op {
			case "abort":
				n.abort(AbortHeard{Room: v.Room, Endpoint: s.Target.target().endpoint, Generation: s.Target.generation, HasGeneration: true})
			case "begin":
				r.outstanding = append(r.outstanding, &write{room: r})
			case "end":
				if len(r.outstanding) > 0 {
					r.outstanding = r.outstanding[1:]
				}
				n.rest(r)
			case "try":
				n.rest(r)
			case "poison":
				r.poisoned = true
				n.acknowledge(r)
			case "reopen":
				r = open()
			default:
				t.Fatalf("line %d: unknown op %q", line, s.Op)
			}
			var acks []string
			for _, a := range n.out {
				if a, ok := a.(SendAck); ok {
					m := vectorMessage{To: a.Endpoint}
					for _, f := range (wire.AbortAck{Room: a.Room, Rank: a.Rank, Generation: a.Generation, HasGeneration: true}).AppendFrames(nil) {
						m.Frames = append(m.Frames, hex.EncodeToString(f))
					}
					acks = append(acks, m.String())
				}
			}
			if want := strs(s.Acks); !slices.Equal(acks, want) {
				t.Errorf("line %d step %d %s: acks %v, want %v", line, i, s.Op, acks, want)
			}
			waiting := slices.Clone(r.acks)
			slices.SortFunc(waiting, func(a, b ackTarget) int { return strings.Compare(a.endpoint, b.endpoint) })
			var want []ackTarget
			for _, x := range s.Waiting {
				want = append(want, x.target())
			}
			if !slices.Equal(waiting, want) || len(r.outstanding) != s.Outstanding || r.poisoned != s.Poisoned {
				t.Errorf("line %d step %d %s: waiting %v, %d outstanding, poisoned %v, want %v, %d, %v", line, i, s.Op, waiting, len(r.outstanding), r.poisoned, want, s.Outstanding, s.Poisoned)
			}
		}
	})
}

// Pages may be released when so many distinct ranks have acknowledged the current generation. Arming again is another life of the room.
func TestDeferredAckDecodeVector(t *testing.T) {
	type step struct {
		Arg json.RawMessage `json:"arg"`
		Op  string          `json:"op"`
		// Safe is checked after the step.
		Safe bool `json:"safe"`
	}
	type row struct {
		Required int    `json:"required"`
		Steps    []step `json:"steps"`
	}
	vectors.Each(t, "deferred_ack_decode", func(t testing.TB, line int, v row) {
		n := NewDecode(Config{Pages: 8})
		life := func() *recvRoom {
			delete(n.aborts, n.abortCount)
			r := &recvRoom{id: 7, epoch: room.Epoch(n.abortCount + 1), status: room.Failed, cause: room.NewCause(room.Aborted, room.Decode, "", ""), posted: true, published: true, sealed: true}
			for rank := range 4 {
				r.targets = append(r.targets, target{Target: Target{Rank: rank}, sent: true})
			}
			n.rooms[7] = r
			return r
		}
		r := life()
		for i, s := range v.Steps {
			n.begin(time.Unix(0, 0))
			switch s.Op {
			case "arm":
				r = life()
				n.abortCount++
				r.abort = n.abortCount
				n.aborts[r.abort] = r
				var want int64
				if err := json.Unmarshal(s.Arg, &want); err != nil || want != r.abort {
					t.Errorf("line %d step %d: generation %d, want %s", line, i, r.abort, s.Arg)
				}
			case "ack":
				var rank int
				var generation *int64
				if err := json.Unmarshal(s.Arg, &[]any{&rank, &generation}); err != nil {
					t.Fatal(err)
				}
				ev := AckHeard{Room: 7, Rank: rank}
				if generation != nil {
					ev.Generation, ev.HasGeneration = *generation, true
				}
				n.acked(ev)
			case "clear":
				if string(s.Arg) != "null" {
					t.Errorf("line %d step %d: clear with %s", line, i, s.Arg)
				}
				r = life()
			default:
				t.Fatalf("line %d: unknown op %q", line, s.Op)
			}
			silent := 0
			for _, x := range r.targets {
				if x.silent {
					silent++
				}
			}
			if safe := silent >= v.Required; safe != s.Safe {
				t.Errorf("line %d step %d %s %s: safe %v, want %v", line, i, s.Op, s.Arg, safe, s.Safe)
			}
		}
	})
}
