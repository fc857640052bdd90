package behave

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/fakeworker"
)

// failureCases are about a leg that fails on its own.
func failureCases() []Case {
	status := func(code int) fakeworker.Behaviour {
		return fakeworker.Behaviour{Mode: fakeworker.Status, Status: code}
	}
	late := func(b fakeworker.Behaviour) fakeworker.Behaviour {
		b.After = fakeworker.Duration(300 * time.Millisecond)
		return b
	}
	only := func(codes ...int) func(answer) bool {
		return func(a answer) bool { return slices.Contains(codes, a.status) }
	}
	broken := func(a answer) bool { return a.status >= 500 }
	limited := status(http.StatusTooManyRequests)
	limited.RetryAfter = "7"

	var cases []Case
	for _, f := range []struct {
		name   string
		b      fakeworker.Behaviour
		stream bool
		want   string
		right  func(answer) bool
	}{
		{"503", status(503), false, "503", only(503)},
		{"503-stream", status(503), true, "503", only(503)},
		{"503-late", late(status(503)), false, "503", only(503)},
		{"503-late-stream", late(status(503)), true, "503", only(503)},
		{"500", status(500), false, "500", only(500)},
		{"400", status(400), false, "400 and the worker's words", func(a answer) bool {
			return a.status == 400 && strings.Contains(a.text, "injected")
		}},
		{"400-stream", status(400), true, "400", only(400)},
		{"429", limited, false, "429 with Retry-After", func(a answer) bool {
			return a.status == 429 && a.header.Get("Retry-After") == "7"
		}},
		{"reset", fakeworker.Behaviour{Mode: fakeworker.Reset}, false, "5xx", broken},
		{"reset-stream", fakeworker.Behaviour{Mode: fakeworker.Reset}, true, "5xx", broken},
		{"reset-after-headers", fakeworker.Behaviour{Mode: fakeworker.ResetAfterHeaders}, false, "5xx or an aborted connection", func(a answer) bool {
			return broken(a) || a.err != nil && !a.gaveUp
		}},
		{"hang", fakeworker.Behaviour{Mode: fakeworker.Hang}, false, "the gateway's own deadline; when the client leaves, both legs end", nil},
	} {
		for _, role := range []fakeworker.Role{fakeworker.Prefill, fakeworker.Decode} {
			c := Case{Name: string(role) + "-" + f.name, Want: f.want}
			if f.right == nil {
				c.run = hangs(role)
			} else {
				c.Want += ", other leg cancelled"
				c.run = fails(role, f.b, f.stream, f.right)
			}
			cases = append(cases, c)
		}
	}
	return append(cases,
		Case{Name: "prefill-503-early-headers", Want: "503 though the decode worker has sent the headers of a 200",
			run: func(e *env, row *Row) {
				e.pool.SetTiming(fakeworker.Timing{Tokens: 8, EarlyHeaders: true})
				fails(fakeworker.Prefill, late(status(503)), true, only(503))(e, row)
			}},
		Case{Name: "prefill-killed", Want: "5xx, other leg cancelled", run: killed(fakeworker.Prefill, false)},
		Case{Name: "prefill-killed-stream", Want: "5xx, other leg cancelled", run: killed(fakeworker.Prefill, true)},
		Case{Name: "decode-killed", Want: "5xx, other leg cancelled", run: killed(fakeworker.Decode, false)},
		Case{Name: "prefill-down", Want: "5xx; decode leg not sent, or cancelled", run: down(fakeworker.Prefill)},
		Case{Name: "decode-down", Want: "5xx; prefill leg not sent, or cancelled", run: down(fakeworker.Decode)},
		Case{Name: "decode-dies-mid-stream", Want: "the client can tell: error event or aborted connection", run: diesMidStream(true)},
		Case{Name: "decode-dies-mid-body", Want: "the client can tell: 5xx or aborted connection", run: diesMidStream(false)},
		Case{Name: "prefill-503-once", Want: "200 after a retry in a fresh room, or 503 at once", run: once(fakeworker.Prefill)},
		Case{Name: "decode-503-once", Want: "200 after a retry in a fresh room, or 503 at once", run: once(fakeworker.Decode)},
		Case{Name: "half-of-prefill-down", Want: "40 of 40 answered 200", prefill: 2, decode: 2, pairs: true, run: halfDown},
		Case{Name: "recovery", Want: "first 200 within 2 s of the worker's return", run: recovery},
	)
}

func other(role fakeworker.Role) fakeworker.Role {
	if role == fakeworker.Prefill {
		return fakeworker.Decode
	}
	return fakeworker.Prefill
}

// failures are the moments at which the legs of one role failed, by room.
func failures(legs []fakeworker.Leg) map[string]time.Time {
	at := map[string]time.Time{}
	for _, l := range legs {
		switch {
		case !l.Answered.IsZero() && l.Status != http.StatusOK:
			at[l.Room] = l.Answered
		case !l.Ended.IsZero() && l.Gone.IsZero():
			at[l.Room] = l.Ended
		}
	}
	return at
}

func fails(role fakeworker.Role, b fakeworker.Behaviour, stream bool, right func(answer) bool) func(*env, *Row) {
	return func(e *env, row *Row) {
		must(e.worker(role).SetBehaviour(b))
		a := e.ask(e.ctx, e.body(stream), options{stream: stream})
		e.judgeLegs(row, a, right(a), failures(e.legs(role)), other(role))
		if n := len(e.legs(role)); n > 1 {
			row.note("%d attempts, rooms %s", n, rooms(e.legs(role)))
		}
	}
}

// hangs: nobody can tell that a silent worker has failed, so what counts is that
// the client's leaving ends both legs.
func hangs(role fakeworker.Role) func(*env, *Row) {
	return func(e *env, row *Row) {
		must(e.worker(role).SetBehaviour(fakeworker.Behaviour{Mode: fakeworker.Hang}))
		a := e.ask(e.ctx, e.body(false), options{})
		row.take(a)
		row.Verdict = Right
		if !a.gaveUp {
			row.note("the gateway gave up by itself")
		}
		e.judgeLeaving(row, a.done)
	}
}

func killed(role fakeworker.Role, stream bool) func(*env, *Row) {
	return func(e *env, row *Row) {
		t := fakeworker.Timing{Tokens: 4, Prefill: fakeworker.Duration(20 * time.Second)}
		if role == fakeworker.Decode {
			t = fakeworker.Timing{Tokens: 200, Token: fakeworker.Duration(100 * time.Millisecond)}
		}
		e.pool.SetTiming(t)
		var at time.Time
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			until(func() bool { return len(e.legs(fakeworker.Prefill)) > 0 && len(e.legs(fakeworker.Decode)) > 0 })
			time.Sleep(200 * time.Millisecond)
			at = time.Now()
			e.worker(role).Down()
		}()
		a := e.ask(e.ctx, e.body(stream), options{stream: stream})
		<-killed
		e.judgeLegs(row, a, a.status >= 500, map[string]time.Time{"": at}, other(role))
	}
}

func down(role fakeworker.Role) func(*env, *Row) {
	return func(e *env, row *Row) {
		e.worker(role).Down()
		a := e.ask(e.ctx, e.body(false), options{})
		e.judgeLegs(row, a, a.status >= 500, map[string]time.Time{"": a.sent}, other(role))
		if n := len(e.legs(other(role))); n > 0 {
			row.note("half-dispatched %d time(s)", n)
		}
	}
}

func diesMidStream(stream bool) func(*env, *Row) {
	return func(e *env, row *Row) {
		e.pool.SetTiming(fakeworker.Timing{Tokens: 16, Token: fakeworker.Duration(10 * time.Millisecond)})
		must(e.d(0).SetBehaviour(fakeworker.Behaviour{Mode: fakeworker.DieMidStream, AtToken: 4}))
		a := e.ask(e.ctx, e.body(stream), options{stream: stream})
		visible := a.err != nil || a.status >= 500 || strings.Contains(a.text, `"error"`)
		e.judgeLegs(row, a, visible && !a.complete, failures(e.legs(fakeworker.Decode)), fakeworker.Prefill)
		if a.err == nil && strings.Contains(a.text, `"error"`) && stream {
			row.note("error event in the stream")
		}
	}
}

func once(role fakeworker.Role) func(*env, *Row) {
	return func(e *env, row *Row) {
		must(e.worker(role).SetBehaviour(fakeworker.Behaviour{Mode: fakeworker.Status, Status: 503, Times: 1}))
		a := e.ask(e.ctx, e.body(false), options{})
		legs := e.legs(role)
		failed := map[string]time.Time{}
		for _, l := range legs {
			if l.Status == 503 {
				failed[l.Room] = l.Answered
			}
		}
		e.judgeLegs(row, a, a.status == 200 || a.status == 503, failed, other(role))
		if row.Verdict == Late && a.status == 200 {
			row.Verdict = Right // the time went into the retry
		}
		switch {
		case len(legs) < 2:
			row.note("no retry")
		case legs[0].Room == legs[1].Room:
			row.Verdict = Wrong
			row.note("the retry reuses room %s", legs[0].Room)
		default:
			row.note("retried after %.0f ms in a fresh room", ms(legs[1].Arrived.Sub(legs[0].Answered)))
		}
	}
}

func halfDown(e *env, row *Row) {
	e.p(0).Down()
	e.limits.Answer = min(e.limits.Answer, 3*time.Second) // times 40, if the gateway hangs
	const n = 40
	statuses := map[string]int{}
	var slowest time.Duration
	start := time.Now()
	for range n {
		a := e.ask(e.ctx, e.body(false), options{})
		statuses[a.String()]++
		slowest = max(slowest, a.done.Sub(a.sent))
	}
	row.ClientMS = ms(time.Since(start) / n)
	row.Got = fmt.Sprintf("%v, slowest %.0f ms", statuses, ms(slowest))
	row.Verdict = Wrong
	if statuses["200"] == n {
		row.Verdict = Right
	}
}

// recovery: the only prefill worker is away for three seconds of traffic.
func recovery(e *env, row *Row) {
	const rate = 20
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	type outcome struct {
		sent   time.Time
		status string
	}
	results := make(chan outcome, 4096)
	send := func() {
		go func() {
			a := e.ask(e.ctx, e.body(false), options{})
			results <- outcome{a.sent, a.String()}
		}()
	}
	e.p(0).Down()
	for range 3 * rate {
		<-tick.C
		send()
	}
	must(e.p(0).Up())
	back := time.Now()
	during, since := map[string]int{}, map[string]int{}
	row.Verdict, row.Got = Wrong, "no 200 within 100 s"
	for time.Since(back) < 100*time.Second {
		select {
		case <-e.ctx.Done():
			return
		case <-tick.C:
			send()
			continue
		case r := <-results:
			if r.sent.Before(back) {
				during[r.status]++
				continue
			}
			since[r.status]++
			if r.status != "200" {
				continue
			}
		}
		took := time.Since(back)
		row.ClientMS = ms(took)
		row.Got = fmt.Sprintf("first 200 after %.2f s", took.Seconds())
		row.Verdict = Late
		if took <= 2*time.Second {
			row.Verdict = Right
		}
		break
	}
	row.note("%d requests sent while it was away, answered by now: %v", 3*rate, during)
	row.note("answers from its return to the first 200: %v", since)
}

func must(err error) {
	if err != nil {
		panic(err) // a mistake in the table of cases
	}
}
