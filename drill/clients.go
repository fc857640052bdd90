package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/wire"
)

// Requests of the cells that need a gateway.
var (
	longPrompt   = strings.Repeat("Package http provides HTTP client and server implementations. ", 12)
	longRequest  = fmt.Sprintf(`{"prompt":%q,"max_tokens":150,"ignore_eos":true,"temperature":0,"stream":true}`, longPrompt)
	shortRequest = `{"prompt":"Reader is","max_tokens":3}`
)

// noGateway is why faults of a client or a gateway are not drilled at a moment.
func noGateway(_ engineKind, m Moment, s side) string {
	switch {
	case s == sideD:
		return "it is on neither side: the same as on p"
	case m == Queued:
		return "not drilled: behind a gateway decode publishes its pages as soon as it has them"
	case m == Cleared:
		return "the client has had its answer"
	}
	return ""
}

func noPrompt(_ engineKind, m Moment, _ side) string {
	if m != Rendezvous {
		return "a prompt that does not fit is refused before its room gets so far"
	}
	return ""
}

// overGateway is one run of a cell in which a client waits at a gateway.
type overGateway struct {
	Cell
	side    side
	ctx     context.Context
	rng     *rand.Rand
	cluster *cluster
	at      int64
	out     *Outcome
}

func (g *overGateway) problem(format string, args ...any) {
	g.out.Problems = append(g.out.Problems, fmt.Sprintf(format, args...))
}

// tryOverGateway runs a cell with workers and a gateway.
func tryOverGateway(ctx context.Context, binary string, n *nursery, c Cell, seed uint64) (out Outcome) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for range setOuts {
		out = Outcome{Cell: c, Detect: -1, Client: -1, Release: -1}
		g := &overGateway{Cell: c, side: side(c.Side), ctx: ctx, rng: rand.New(rand.NewPCG(seed, 1)), out: &out}
		err := g.run(binary, n)
		if err != nil {
			g.problem("%v", err)
		}
		g.cluster.close()
		for _, x := range g.cluster.born {
			if len(out.Problems) > 0 && x.logs.Len() > 0 {
				out.Logs += x.name + ":\n" + x.logs.String() + "\n"
			}
		}
		if !errors.Is(err, errBefore) {
			break
		}
	}
	return out
}

func (g *overGateway) run(binary string, n *nursery) (err error) {
	flags, first, course := map[side][]string{}, longRequest, g.drill
	if g.Fault == "over-long-prompt" {
		flags[g.side], first, course = []string{"--pages", "4"}, shortRequest, g.tooLong
	}
	if g.cluster, err = newCluster(g.ctx, binary, n, flags); err != nil {
		return fmt.Errorf("%w: start: %w", errBefore, err)
	}
	if err := g.cluster.discover(g.ctx, first); err != nil {
		return fmt.Errorf("%w: %w", errBefore, err)
	}
	for s := range g.cluster.workers {
		if _, err := g.back(s); err != nil {
			return fmt.Errorf("%w: %w", errBefore, err)
		}
	}
	return course()
}

// tooLong asks what one side has no place for: the client must hear that the request is wrong.
func (g *overGateway) tooLong() error {
	g.at = monotonic()
	a := g.cluster.gateway.ask(g.ctx, longRequest, nil)
	g.out.Client = time.Duration(a.at - g.at)
	if a.err != nil || a.status != http.StatusBadRequest || !strings.Contains(a.body, room.Invalid.String()) {
		g.problem("the client got %d %.200s %v, want a refusal of its request", a.status, a.body, a.err)
	}
	for _, s := range []side{sideP, sideD} {
		if _, err := g.back(s); err != nil {
			g.problem("%v", err)
		}
	}
	return g.next()
}

func (g *overGateway) drill() error {
	c, n := g.cluster, g.cluster.net
	ctx, leave := context.WithCancel(g.ctx)
	defer leave()
	if g.Moment == Rendezvous { // decode remembers for a second where prefill is
		select {
		case <-time.After(1100 * time.Millisecond):
		case <-g.ctx.Done():
			return g.ctx.Err()
		}
	}
	trap, reached := g.reach(n.payload())
	done, began := make(chan reply, 1), make(chan struct{})
	go func() { done <- c.gateway.ask(ctx, longRequest, began) }()
	if g.Moment == Decoding {
		reached = began
	}
	select {
	case <-reached:
	case a := <-done:
		return fmt.Errorf("%w: moment not reached: the client got %d %.200s %w", errBefore, a.status, a.body, a.err)
	case <-time.After(patience):
		return fmt.Errorf("%w: moment not reached within %v", errBefore, patience)
	}
	g.at = monotonic()
	if g.Fault == "client-gone" {
		leave()
	} else {
		c.gateway.kill()
	}
	if trap != nil {
		n.spring(trap, pass)
	}
	a := <-done // it is bounded
	if g.Fault == "gateway-gone" {
		g.out.Client = time.Duration(a.at - g.at)
	}
	if a.whole() == nil {
		g.problem("the client got a whole answer")
	}
	return g.after()
}

// reach lays what holds the request at its moment.
func (g *overGateway) reach(total int64) (*trap, <-chan struct{}) {
	n := g.cluster.net
	var t *trap
	switch g.Moment {
	case Rendezvous:
		t = newTrap(kindBoot, sideP, 1, nil)
	case Published:
		t = newTrap(kindControl, sideP, 1, func(f [][]byte) bool { return wire.ClassifyP(wire.Mooncake, f) == wire.KindMetadata })
	case InFlight:
		return nil, n.limit(1 + g.rng.Int64N(total-2))
	case LastByte:
		return nil, n.limit(total - 1)
	default:
		return nil, nil
	}
	n.lay(t)
	return t, t.caught
}

// after looks at what is left: decode's pages need no help of the network, prefill's are read while bytes are held.
func (g *overGateway) after() error {
	var detect, release time.Duration
	for _, s := range []side{sideD, sideP} {
		if s == sideP {
			if err := g.cluster.net.heal(g.ctx); err != nil {
				return err
			}
		}
		at, err := g.back(s)
		if err != nil {
			g.problem("%v", err)
			continue
		}
		detect, release = max(detect, at[0]), max(release, at[1])
	}
	g.out.Detect, g.out.Release = detect, release
	if g.Fault == "gateway-gone" {
		if err := g.cluster.front(g.ctx); err != nil {
			return err
		}
	}
	return g.next()
}

// back waits until a worker is as it was before any request, and says when its last job was over and when all was back. Page numbers and
// acknowledgements of decode may wait for prefill.
func (g *overGateway) back(s side) (at [2]time.Duration, err error) {
	x, want := g.cluster.workers[s], g.cluster.base[s]
	var l load
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if l, err = x.load(g.ctx); err != nil {
			return at, err
		}
		now := time.Duration(monotonic() - g.at)
		if l.Jobs == 0 && at[0] == 0 {
			at[0] = now
		}
		if same := g.same(s, l, want); same || time.Now().After(end) {
			at[1] = now
			if !same {
				err = fmt.Errorf("%s: %v, want %v", x.name, l, want)
			}
			return at, err
		}
	}
}

func (g *overGateway) same(s side, l, want load) bool {
	held := g.cluster.net.holds()
	for i := range l.Ranks {
		if s == sideD && held {
			l.Ranks[i].UnprovenGenerations, l.Ranks[i].Unacknowledged = 0, 0
		}
	}
	return reflect.DeepEqual(l, want)
}

// next sends one more request, until it succeeds, and looks at the tables for the last time.
func (g *overGateway) next() error {
	ctx, cancel := context.WithTimeout(g.ctx, patience)
	defer cancel()
	for {
		a := g.cluster.gateway.ask(ctx, shortRequest, nil)
		err := a.whole()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return errors.Join(errors.New("the next request"), err)
		}
		g.out.Retries++
		g.out.Again = err.Error()
		time.Sleep(50 * time.Millisecond)
	}
	for s := range g.cluster.workers {
		if _, err := g.back(s); err != nil {
			g.problem("%v", err)
		}
	}
	return nil
}
