package drill

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/room"
)

func TestEveryCombinationIsDrilledOrHasAReason(t *testing.T) {
	all := Matrix()
	if want := len(engines) * len(faults) * 2 * len(Moments); len(all) != want {
		t.Fatalf("%d cells, want %d", len(all), want)
	}
	alive := map[string]int{}
	for _, c := range all {
		f := faultOf(c.Fault)
		if f == nil || f.about == "" || (f.strike == nil) != f.gateway || strings.HasPrefix(c.Fault, "p-") || strings.HasPrefix(c.Fault, "d-") {
			t.Fatalf("%s: no fault, or one that can't be asked for", c)
		}
		if c.NA != "" {
			continue
		}
		alive[c.Fault]++
		if f.gateway {
			continue
		}
		p, d := f.expect(c.Moment, side(c.Side))
		for _, w := range []want{p, d} {
			if !w.success && !w.failed {
				t.Errorf("%s: no verdict will do", c)
			}
			if c.Moment.over() && w.failed {
				t.Errorf("%s: a verdict is immutable, yet a failure will do", c)
			}
		}
	}
	for _, f := range faults {
		if alive[f.name] == 0 {
			t.Errorf("%s is never drilled", f.name)
		}
	}
}

func TestSelect(t *testing.T) {
	for _, c := range []struct {
		only string
		n    int
	}{{"killed", 14}, {"p-killed", 7}, {"p-killed@in-flight", 1}, {"killed@in-flight,d-stopped", 9}, {"write-error", 14}} {
		list, err := Select(Matrix(), strings.Split(c.only, ","))
		if err != nil || len(list) != c.n {
			t.Errorf("%s: %d cells, %v, want %d", c.only, len(list), err, c.n)
		}
	}
	for _, bad := range []string{"", "p-", "kill", "x-killed", "p-killed@noon"} {
		if list, err := Select(Matrix(), []string{bad}); err == nil {
			t.Errorf("%q selects %d cells", bad, len(list))
		}
	}
}

func TestJudge(t *testing.T) {
	failed := func(c room.Code) word { return word{Status: room.Failed.String(), Code: c.String()} }
	for _, c := range []struct {
		w  want
		v  word
		ok bool
	}{
		{mustSucceed, word{Status: room.Success.String()}, true},
		{mustSucceed, failed(cDead), false},
		{fails(cDead), failed(cDead), true},
		{fails(cDead), failed(cSilent), false},
		{fails(cDead), word{Status: room.Success.String()}, false},
		{mustFail, failed(cSilent), true},
		{mustFail, failed(room.Internal), false},
		{mustSucceed.or(fails(cWrite)), failed(cWrite), true},
		{mustSucceed.or(fails(cWrite)), failed(cDead), false},
	} {
		if p := c.w.judge(c.v); (p == "") != c.ok {
			t.Errorf("%+v of %+v: %q", c.v, c.w, p)
		}
	}
}

func TestStats(t *testing.T) {
	var list []time.Duration
	for i := range 200 {
		list = append(list, time.Duration(200-i)*time.Millisecond)
	}
	s := statsOf(append(list, -1))
	if s.N != 200 || s.P50 != 100*time.Millisecond || s.P99 != 198*time.Millisecond || s.Max != 200*time.Millisecond {
		t.Errorf("%+v", s)
	}
	for _, c := range []struct {
		s    Stats
		want string
	}{{statsOf([]time.Duration{-1}), "null"}, {statsOf([]time.Duration{1500 * time.Microsecond}), `{"p50":1.5,"p99":1.5,"max":1.5}`}} {
		if b, err := json.Marshal(c.s); err != nil || string(b) != c.want {
			t.Errorf("%s %v, want %s", b, err, c.want)
		}
	}
}

// A drill that can't find anything is worth nothing: another expectation, and a byte in a free page, are problems.
func TestTheDrillFindsWhatIsWrong(t *testing.T) {
	n := newNursery()
	defer n.close()
	c := Cell{Fault: "abort", Moment: InFlight, Side: "d", Engine: "tcp"}
	if out := try(t.Context(), self(t), n, c, 1); len(out.Problems) > 0 {
		t.Fatalf("%q\n%s", out.Problems, out.Logs)
	}
	f := faultOf("abort")
	was := f.expect
	f.expect = always(mustSucceed)
	defer func() { f.expect = was }()
	out := try(t.Context(), self(t), n, c, 1)
	if !slices.ContainsFunc(out.Problems, func(p string) bool { return strings.Contains(p, "want success") }) {
		t.Errorf("%q, want a room that had to succeed", out.Problems)
	}
}

func TestGuardsSeeAForeignByte(t *testing.T) {
	s := &server{setup: Setup{Side: "decode", Engine: "tcp", Instance: strings.Repeat("ab", 16), TP: 1, Bind: "127.0.0.1", Advertise: "127.0.0.1"}}
	s.rooms = map[room.ID]*hand{}
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.close() }() // nothing is open
	if err := s.guards(); err != nil {
		t.Fatal(err)
	}
	s.page(1, 3)[100] ^= 1
	if err := s.guards(); err == nil || !strings.Contains(err.Error(), "page 3") {
		t.Errorf("%v, want page 3", err)
	}
	s.page(1, 3)[100] ^= 1
	s.slot(5)[0] ^= 1
	if err := s.guards(); err == nil || !strings.Contains(err.Error(), "aux slot 5") {
		t.Errorf("%v, want aux slot 5", err)
	}
}
