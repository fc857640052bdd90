package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// broken is a node with a fault: edit changes what one step says.
type broken struct {
	stepper
	edit func(now time.Time, ev node.Event, as []node.Action) []node.Action
}

func (b broken) Step(now time.Time, ev node.Event) ([]node.Action, error) {
	as, err := b.stepper.Step(now, ev)
	return b.edit(now, ev, as), err
}

// deaf is a node that does not hear some events.
type deaf struct {
	stepper
	to func(node.Event) bool
}

func (d deaf) Step(now time.Time, ev node.Event) ([]node.Action, error) {
	if d.to(ev) {
		return nil, nil
	}
	return d.stepper.Step(now, ev)
}

type wrapper = func(stepper, *node.Ledger) stepper

func only(s room.Side, w wrapper) func(room.Side, stepper, *node.Ledger) stepper {
	return func(side room.Side, n stepper, l *node.Ledger) stepper {
		if side != s {
			return n
		}
		return w(n, l)
	}
}

// swallow drops the actions of a type.
func swallow[A node.Action](n stepper) stepper {
	return broken{n, func(_ time.Time, _ node.Event, as []node.Action) []node.Action {
		return slices.DeleteFunc(slices.Clone(as), func(a node.Action) bool { _, ok := a.(A); return ok })
	}}
}

// ignore drops the events of a type.
func ignore[E node.Event](n stepper) stepper {
	return deaf{n, func(ev node.Event) bool { _, ok := ev.(E); return ok }}
}

// insert adds what more says about an action, behind it.
func insert[A node.Action](n stepper, more func(A) []node.Action) stepper {
	return broken{n, func(_ time.Time, _ node.Event, as []node.Action) (out []node.Action) {
		for _, a := range as {
			out = append(out, a)
			if x, ok := a.(A); ok {
				out = append(out, more(x)...)
			}
		}
		return out
	}}
}

// replace changes the actions of a type.
func replace[A node.Action](n stepper, f func(A) node.Action) stepper {
	return broken{n, func(_ time.Time, _ node.Event, as []node.Action) []node.Action {
		as = slices.Clone(as)
		for i, a := range as {
			if x, ok := a.(A); ok {
				as[i] = f(x)
			}
		}
		return as
	}}
}

// early releases the pages of a room that failed at once, while they may still be written to.
func early(n stepper, l *node.Ledger) stepper {
	pages := map[room.ID][]int32{}
	return broken{n, func(_ time.Time, ev node.Event, as []node.Action) []node.Action {
		for _, a := range as {
			switch a := a.(type) {
			case node.OpenLease:
				pages[a.Room] = a.Pages
			case node.SealLease:
				_ = l.Release(pages[a.Room]) // that is the fault
			}
		}
		return as
	}}
}

// hasty acknowledges an abort although writes are under way.
func hasty(n stepper, _ *node.Ledger) stepper {
	return broken{n, func(_ time.Time, ev node.Event, as []node.Action) []node.Action {
		if a, ok := ev.(node.AbortHeard); ok && a.HasGeneration && !slices.ContainsFunc(as, func(a node.Action) bool { _, ok := a.(node.SendAck); return ok }) {
			as = append(slices.Clone(as), node.SendAck{Endpoint: a.Endpoint, Room: a.Room, Rank: 0, Generation: a.Generation})
		}
		return as
	}}
}

// gullible believes that everything has arrived as soon as it is asked for.
type gullible struct{ stepper }

func (g gullible) Step(now time.Time, ev node.Event) ([]node.Action, error) {
	as, err := g.stepper.Step(now, ev)
	as = slices.Clone(as)
	for _, a := range as {
		if l, ok := a.(node.OpenLease); ok {
			more, _ := g.stepper.Step(now, node.Covered{Room: l.Room, Epoch: l.Epoch}) // never fails
			as = append(as, more...)
		}
	}
	return as, err
}

// Every rule can be broken, and is seen to be.
func TestBrokenNodesAreCaught(t *testing.T) {
	other := room.NewCause(room.Internal, room.Decode, "", "somebody else")
	plain := func(f func(stepper) stepper) wrapper { return func(n stepper, _ *node.Ledger) stepper { return f(n) } }
	for _, c := range []struct {
		name  string
		side  room.Side
		wrap  wrapper
		rules []string
	}{
		{"never seals", room.Decode, plain(swallow[node.SealLease]), []string{"promise", "empty", "lease"}},
		{"gives pages back early", room.Decode, early, []string{"ledger", "promise"}},
		{"acknowledges too soon", room.Prefill, hasty, []string{"promise", "quiescence"}},
		{"retires too soon", room.Decode, plain(func(n stepper) stepper {
			return insert(n, func(a node.SealLease) []node.Action { return []node.Action{node.RetireLease(a)} })
		}), []string{"lease"}},
		{"tells no verdict", room.Prefill, plain(swallow[node.SendStatus]), []string{"prompt", "verdict", "letters"}},
		{"tells no abort", room.Decode, plain(swallow[node.SendAbort]), []string{"prompt", "verdict", "letters", "empty"}},
		{"keeps a verdict from its owner", room.Decode, plain(func(n stepper) stepper {
			return broken{n, func(_ time.Time, _ node.Event, as []node.Action) []node.Action {
				return slices.DeleteFunc(slices.Clone(as), func(a node.Action) bool { c, ok := a.(node.Changed); return ok && c.Status == room.Failed })
			}}
		}), []string{"quiescence", "verdict"}},
		{"changes the cause", room.Decode, plain(func(n stepper) stepper {
			return replace(n, func(a node.Changed) node.Action {
				if a.Status == room.Failed {
					a.Cause = other
				}
				return a
			})
		}), []string{"cause"}},
		{"tells another cause", room.Prefill, plain(func(n stepper) stepper {
			return replace(n, func(a node.SendStatus) node.Action {
				if a.Status == room.Failed {
					a.Cause = other
				}
				return a
			})
		}), []string{"cause"}},
		{"tells a cause that is none", room.Prefill, plain(func(n stepper) stepper {
			return replace(n, func(a node.SendStatus) node.Action { a.Cause = room.Cause{}; return a })
		}), []string{"status"}},
		{"succeeds without the bytes", room.Decode, func(n stepper, _ *node.Ledger) stepper { return gullible{n} }, []string{"success"}},
		{"resurrects", room.Prefill, plain(func(n stepper) stepper {
			return insert(n, func(a node.Cleared) []node.Action {
				return []node.Action{node.Changed{Room: a.Room, Status: room.Failed, Cause: other}}
			})
		}), []string{"resurrection"}},
		{"clears before it is quiet", room.Prefill, plain(swallow[node.Quiescent]), []string{"clear", "ledger"}},
		{"does not hear Clear", room.Decode, plain(ignore[node.Clear]), []string{"tables", "empty"}},
		{"loses the end of a write", room.Prefill, plain(ignore[node.WriteSettled]), []string{"writes"}},
		{"writes twice", room.Prefill, plain(func(n stepper) stepper {
			return insert(n, func(a node.StartWrite) []node.Action { return []node.Action{a} })
		}), []string{"writes"}},
		{"writes elsewhere", room.Prefill, plain(func(n stepper) stepper {
			return replace(n, func(a node.StartWrite) node.Action {
				for i, d := range a.Dst {
					if a.Dst = slices.Clone(a.Dst); d>>tagBits > 0 {
						a.Dst[i] -= 1 << tagBits
					}
				}
				return a
			})
		}), []string{"promise"}},
		{"speaks its own language to strangers", room.Decode, plain(func(n stepper) stepper {
			return replace(n, func(a node.SendMetadata) node.Action { a.Native = true; return a })
		}), []string{"foreign"}},
		{"does not let go of a peer", room.Decode, plain(swallow[node.Disconnect]), []string{"tables", "connections"}},
		{"does not see that a peer is gone", room.Decode, plain(ignore[node.PeerRefused]), []string{"prompt", "empty", "tables"}},
		{"keeps a registration", room.Prefill, plain(swallow[node.Unregistered]), []string{"tables", "empty"}},
		{"accepts what it should not", room.Prefill, func(n stepper, _ *node.Ledger) stepper { return forgiving{n} }, []string{"errors"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 400; seed++ {
				cfg := FromSeed(seed)
				cfg.wrap = only(c.side, c.wrap)
				if v := Run(cfg).Violations; len(v) > 0 {
					if !slices.Contains(c.rules, v[0].Rule) {
						t.Errorf("seed %d: %v, want one of %v", seed, v[0], c.rules)
					}
					return
				}
			}
			t.Error("not caught")
		})
	}
}

// forgiving reports no misuse.
type forgiving struct{ stepper }

func (f forgiving) Step(now time.Time, ev node.Event) ([]node.Action, error) {
	as, _ := f.stepper.Step(now, ev) // that is the fault
	return as, nil
}
