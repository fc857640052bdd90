// Package behave asks one question after another of a gateway: what happens
// when this goes wrong? Each case gets a fresh pool of fake workers and a fresh
// gateway process, and yields one Row.
package behave

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/fakeworker"
	"github.com/kvferry/kvferry/bench/gateway/gateway"
	"github.com/kvferry/kvferry/bench/gateway/load"
)

// Verdict sums up a row.
type Verdict string

const (
	Right Verdict = "right"
	Late  Verdict = "late" // right in the end, but slower than Limits allow
	Wrong Verdict = "wrong"
	Info  Verdict = "info" // told for the record, not judged
	NA    Verdict = "n/a"  // the gateway does not offer what the case is about
)

// Limits are what a right gateway keeps.
type Limits struct {
	Told   time.Duration // from a leg's failure to the client's answer
	Cancel time.Duration // from the failure, or the client's leaving, to the end of the other leg
	Answer time.Duration // after it the client gives up waiting
	Settle time.Duration // how long a leg is watched after the client is done
}

// Row is the outcome of one case.
type Row struct {
	Gateway string  `json:"gateway"`
	Case    string  `json:"case"`
	Want    string  `json:"want"`
	Verdict Verdict `json:"verdict"`
	Got     string  `json:"got"` // in words

	Status   int      `json:"status,omitempty"` // of the client's answer; 0 if there was none
	ClientMS float64  `json:"client_ms"`        // from sending to the end of the answer
	ToldMS   *float64 `json:"told_ms,omitempty"`
	CancelMS *float64 `json:"cancel_ms,omitempty"` // worst of all other legs; -1: not cancelled by the gateway while watched
	Prefill  int      `json:"prefill_legs"`        // requests seen by prefill workers
	Decode   int      `json:"decode_legs"`
	Body     string   `json:"body,omitempty"` // start of the client's answer
	Notes    []string `json:"notes,omitempty"`
}

func (r *Row) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Case is one question.
type Case struct {
	Name string
	Want string

	prefill, decode int    // workers; 0 means 1
	api             string // "" means chat
	pairs           bool   // needs a gateway that chooses among workers
	run             func(*env, *Row)
}

// Cases lists all of them in the order of the table.
func Cases() []Case { return slices.Concat(failureCases(), clientCases(), bodyCases(), edgeCases()) }

// Run asks one question. A gateway that can't be started is an error.
func Run(ctx context.Context, def gateway.Definition, c Case, limits Limits, log io.Writer) (Row, error) {
	row := Row{Gateway: def.Name, Case: c.Name, Want: c.Want}
	if c.api == "" {
		c.api = "chat"
	}
	if !def.Has(c.api) || c.pairs && def.FixedPair {
		row.Verdict, row.Got = NA, "not offered"
		return row, nil
	}
	pool, err := fakeworker.Start(fakeworker.Config{Prefill: max(c.prefill, 1), Decode: max(c.decode, 1), Record: true, KeepBody: 64 << 10})
	if err != nil {
		return row, err
	}
	defer pool.Close()
	var topo gateway.Topology
	for _, w := range pool.Workers(fakeworker.Prefill) {
		topo.Prefill = append(topo.Prefill, gateway.Endpoint{Addr: w.Addr(), BootstrapPort: w.BootstrapPort()})
	}
	for _, w := range pool.Workers(fakeworker.Decode) {
		topo.Decode = append(topo.Decode, gateway.Endpoint{Addr: w.Addr()})
	}
	gw, err := gateway.Start(ctx, def, topo, log)
	if err != nil {
		return row, err
	}
	defer gw.Stop()
	e := &env{ctx: ctx, pool: pool, gw: gw, api: c.api, limits: limits}
	e.waitIdle()
	pool.Forget()
	c.run(e, &row)
	for _, leg := range pool.Legs() {
		if _, inference := apiOf[leg.Path]; !inference {
			continue
		}
		switch leg.Role {
		case fakeworker.Prefill:
			row.Prefill++
		case fakeworker.Decode:
			row.Decode++
		case fakeworker.Plain:
		}
	}
	if !gw.Alive() {
		row.Verdict = Wrong
		row.note("the gateway process ended")
	}
	return row, nil
}

var apiOf = func() map[string]string {
	m := map[string]string{}
	for api, path := range load.Paths {
		m[path] = api
	}
	return m
}()

// env is what a case works with.
type env struct {
	ctx    context.Context
	pool   *fakeworker.Pool
	gw     *gateway.Process
	api    string
	limits Limits
}

func (e *env) p(i int) *fakeworker.Worker { return e.pool.Workers(fakeworker.Prefill)[i] }
func (e *env) d(i int) *fakeworker.Worker { return e.pool.Workers(fakeworker.Decode)[i] }

func (e *env) worker(role fakeworker.Role) *fakeworker.Worker { return e.pool.Workers(role)[0] }

// body is an ordinary request.
func (e *env) body(stream bool) []byte { return load.Body(e.api, 64, stream, 8, 1) }

// legs are the inference requests that workers of one role have seen.
func (e *env) legs(role fakeworker.Role) []fakeworker.Leg {
	var legs []fakeworker.Leg
	for _, l := range e.pool.Legs() {
		if _, inference := apiOf[l.Path]; inference && l.Role == role {
			legs = append(legs, l)
		}
	}
	return legs
}

// waitIdle waits until no leg is being served, for at most Limits.Settle, and
// long enough to see a leg that a gateway sends after it has answered.
func (e *env) waitIdle() {
	time.Sleep(200 * time.Millisecond)
	for end := time.Now().Add(e.limits.Settle); time.Now().Before(end); time.Sleep(time.Millisecond) {
		busy := slices.ContainsFunc(e.pool.Legs(), func(l fakeworker.Leg) bool { return l.Ended.IsZero() })
		if !busy {
			return
		}
	}
}

// until waits for a condition, for at most five seconds.
func until(f func() bool) bool {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f() {
			return true
		}
	}
	return false
}

func ms(d time.Duration) float64 { return math.Round(d.Seconds()*1e5) / 100 }

// judgeLegs fills a row about a failed leg: was the client told the truth, in
// time, and was the other leg of each attempt ended?
//
// failed gives the moment at which an attempt failed, by room; "" stands for a
// failure that left no leg behind.
func (e *env) judgeLegs(row *Row, a answer, statusRight bool, failed map[string]time.Time, other fakeworker.Role) {
	e.waitIdle()
	row.take(a)
	row.Verdict = Right
	if len(failed) > 0 && a.err == nil {
		first := a.sent.Add(time.Hour)
		for _, t := range failed {
			if t.Before(first) {
				first = t
			}
		}
		told := ms(a.done.Sub(first))
		row.ToldMS = &told
		if a.done.Sub(first) > e.limits.Told {
			row.Verdict = Late
		}
	}
	for _, leg := range e.legs(other) {
		at, ok := failed[leg.Room]
		if !ok {
			at, ok = failed[""]
		}
		if !ok {
			continue
		}
		if leg.Arrived.After(at) {
			row.note("%s leg arrived %.1f ms after the failure", other, ms(leg.Arrived.Sub(at)))
			at = leg.Arrived
		}
		switch {
		case a.gaveUp && leg.Gone.After(a.done.Add(-10*time.Millisecond)):
			never := -1.0
			row.CancelMS = &never
			row.note("%s leg cancelled only when the client gave up", other)
		case !leg.Gone.IsZero():
			row.cancelled(leg.Gone.Sub(at), e.limits.Cancel)
		case leg.Ended.IsZero():
			never := -1.0
			row.CancelMS = &never
			row.Verdict = Wrong
			row.note("%s leg still held %.1f s after the failure", other, time.Since(at).Seconds())
		default:
			row.note("%s leg ended: %s", other, leg.Outcome)
		}
	}
	if a.gaveUp {
		row.Verdict = Wrong
		row.note("no answer within %v", e.limits.Answer)
	} else if !statusRight {
		row.Verdict = Wrong
	}
}

func (r *Row) cancelled(after, limit time.Duration) {
	v := ms(after)
	if r.CancelMS == nil || *r.CancelMS >= 0 && *r.CancelMS < v {
		r.CancelMS = &v
	}
	if after > limit && r.Verdict == Right {
		r.Verdict = Late
	}
}

// take copies what the client saw.
func (r *Row) take(a answer) {
	r.Status, r.ClientMS = a.status, ms(a.done.Sub(a.sent))
	r.Body = a.text
	if len(r.Body) > 300 {
		r.Body = r.Body[:300] + "…"
	}
	r.Got = a.String()
}

// rooms lists the rooms of legs in order, for notes.
func rooms(legs []fakeworker.Leg) string {
	var texts []string
	for _, l := range legs {
		texts = append(texts, l.Room)
	}
	return strings.Join(texts, " ")
}

var errGaveUp = errors.New("client gave up")
