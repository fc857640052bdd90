package sim

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

var (
	seeds = flag.Uint64("sim.seeds", 4000, "how many seeds TestSeeds runs; the trace of a single one is logged")
	from  = flag.Uint64("sim.from", 1, "its first seed")
)

// lanes is how many parts of a sweep run at once, at most.
const lanes = 8

// sweep runs seeds and reports those that break a rule.
func sweep(t *testing.T, first, n uint64) {
	for lane := range uint64(lanes) {
		t.Run(fmt.Sprintf("lane%d", lane), func(t *testing.T) {
			t.Parallel()
			bad := 0
			for seed := first + lane; seed < first+n && bad < 2; seed += lanes {
				if cfg := FromSeed(seed); len(Run(cfg).Violations) > 0 {
					bad++
					t.Error(explain(cfg))
				}
			}
		})
	}
}

// explain cuts a failing world down and tells what happens in it.
func explain(cfg Config) string {
	small := Shrink(cfg, 500)
	small.Trace = true
	r := Run(small)
	var b strings.Builder
	fmt.Fprintf(&b, "%v\nagain: go test ./sim -run 'TestSeeds$' -v -sim.from=%d -sim.seeds=1\n%d operations are enough:\n", cfg, cfg.Seed, len(small.Ops))
	for _, o := range small.Ops {
		fmt.Fprintln(&b, o)
	}
	fmt.Fprintln(&b, "what happens:")
	for i, line := range r.Log {
		if strings.Contains(line, "!!!") {
			for _, line := range r.Log[max(0, i-60) : i+1] {
				fmt.Fprintln(&b, line)
			}
			break
		}
	}
	return b.String()
}

// Some seeds, also where the race detector makes a sweep too slow.
func TestSomeSeeds(t *testing.T) { sweep(t, 1_000_001, 240) }

func TestTheSameSeedIsTheSameRun(t *testing.T) {
	hashes := map[uint64]uint64{}
	for seed := uint64(1); seed <= 60; seed++ {
		a, b := Run(FromSeed(seed)), Run(FromSeed(seed))
		if a.Hash != b.Hash || a.Steps != b.Steps {
			t.Errorf("seed %d: %d steps, hash %x, then %d steps, hash %x", seed, a.Steps, a.Hash, b.Steps, b.Hash)
		}
		if other, ok := hashes[a.Hash]; ok {
			t.Errorf("seeds %d and %d have the same hash", other, seed)
		}
		hashes[a.Hash] = seed
	}
}

// A trace is readable: it names who does what, and says the same whether it is asked for or not.
func TestTrace(t *testing.T) {
	cfg := FromSeed(3)
	plain := Run(cfg)
	cfg.Trace = true
	r := Run(cfg)
	if r.Hash != plain.Hash || len(plain.Log) != 0 {
		t.Errorf("hash %x with a trace, %x without; %d lines without", r.Hash, plain.Hash, len(plain.Log))
	}
	all := strings.Join(r.Log, "\n")
	for _, want := range []string{"prefill0.0 < OpenSend{Room:", "  > Changed{Room:", "  > StartWrite{", "== the faults are over"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}

// Connections that break and messages that come twice fail no room of native peers: what was lost is said again.
func TestBrokenConnectionsFailNothing(t *testing.T) {
	broke := 0
	for seed := uint64(1); seed <= 300; seed++ {
		cfg := FromSeed(seed)
		cfg.Peers, cfg.Rooms, cfg.Faults, cfg.skip, cfg.Few, cfg.Coverage, cfg.Short = Native, 4, 30, 0, false, false, false
		if slices.ContainsFunc([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}, func(k int) bool { return cfg.barred(k/3, k%3) }) {
			continue
		}
		var ops []Op
		for _, o := range generate(cfg) {
			switch o.Kind {
			case OpenSend, OpenReceive:
				if o.N > 0 {
					continue
				}
			case Fail, Clear, Hole, Pause, Kill, Start, Fate, Linger, Leave, Wedge, Drop:
				continue
			case Break:
				broke++
			default:
			}
			ops = append(ops, o)
		}
		cfg.Ops = ops
		if r := Run(cfg); r.Failed > 0 || len(r.Violations) > 0 {
			t.Errorf("%v: %d failed, %v", cfg, r.Failed, r.Violations)
		}
	}
	if broke < 300 {
		t.Errorf("%d connections broke", broke)
	}
}

func TestShrink(t *testing.T) {
	cfg := FromSeed(1)
	for len(cfg.Ops) < 100 || cfg.Faults > 0 || !cfg.Group {
		cfg = FromSeed(cfg.Seed + 1)
	}
	if whole := Shrink(cfg, 10); len(whole.Ops) != len(cfg.Ops) {
		t.Errorf("a world without a fault is cut to %d operations", len(whole.Ops))
	}
	cfg.wrap = only(room.Prefill, func(n stepper, _ *node.Ledger) stepper { return swallow[node.SendStatus](n) })
	rule := Run(cfg).Violations[0].Rule
	small := Shrink(cfg, 1000)
	if got := Run(small).Violations; len(got) == 0 || got[0].Rule != rule || len(small.Ops) > 12 {
		t.Errorf("%d operations of %d are left and break %v, want %s", len(small.Ops), len(cfg.Ops), got, rule)
	}
	for i := range small.Ops {
		less := small
		less.Ops = append(append([]Op(nil), small.Ops[:i]...), small.Ops[i+1:]...)
		if got := Run(less).Violations; len(got) > 0 && got[0].Rule == rule {
			t.Errorf("%v is not needed", small.Ops[i])
		}
	}
	if some := Shrink(cfg, 20); len(some.Ops) > len(cfg.Ops) || len(Run(some).Violations) == 0 {
		t.Error("cut short, it does not fail any more")
	}
}
