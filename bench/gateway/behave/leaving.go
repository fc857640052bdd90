package behave

import (
	"context"
	"net/http"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/fakeworker"
)

// clientCases are about a client that leaves.
func clientCases() []Case {
	return []Case{
		{Name: "client-leaves-before-first-token", Want: "both legs cancelled", run: leavesEarly(false)},
		{Name: "client-leaves-before-first-token-stream", Want: "both legs cancelled", run: leavesEarly(true)},
		{Name: "client-leaves-mid-stream", Want: "decode leg cancelled", run: leavesMidStream},
	}
}

func leavesEarly(stream bool) func(*env, *Row) {
	return func(e *env, row *Row) {
		e.pool.SetTiming(fakeworker.Timing{Tokens: 4, Prefill: fakeworker.Duration(20 * time.Second)})
		ctx, leave := context.WithCancel(e.ctx)
		go func() {
			until(func() bool { return len(e.legs(fakeworker.Prefill)) > 0 && len(e.legs(fakeworker.Decode)) > 0 })
			time.Sleep(200 * time.Millisecond)
			leave()
		}()
		a := e.ask(ctx, e.body(stream), options{stream: stream})
		row.take(a)
		row.Got = "left"
		row.Verdict = Right
		e.judgeLeaving(row, a.done)
	}
}

func leavesMidStream(e *env, row *Row) {
	e.pool.SetTiming(fakeworker.Timing{Tokens: 500, Token: fakeworker.Duration(20 * time.Millisecond)})
	ctx, leave := context.WithCancel(e.ctx)
	defer leave()
	a := e.ask(ctx, e.body(true), options{stream: true, onEvent: func(n int) {
		if n == 3 {
			leave()
		}
	}})
	row.take(a)
	row.Got = "left"
	row.Verdict = Right
	e.judgeLeaving(row, a.done)
	for _, l := range e.legs(fakeworker.Decode) {
		row.note("decode worker sent %d tokens", l.Tokens)
	}
}

// judgeLeaving looks at how soon the legs ended after the client had left.
func (e *env) judgeLeaving(row *Row, left time.Time) {
	e.waitIdle()
	for _, role := range []fakeworker.Role{fakeworker.Prefill, fakeworker.Decode} {
		for _, leg := range e.legs(role) {
			switch {
			case !leg.Gone.IsZero():
				row.cancelled(leg.Gone.Sub(left), e.limits.Cancel)
				row.note("%s leg cancelled after %.1f ms", role, ms(leg.Gone.Sub(left)))
			case leg.Ended.IsZero():
				never := -1.0
				row.CancelMS = &never
				row.Verdict = Wrong
				row.note("%s leg still held %.1f s after the client left", role, time.Since(left).Seconds())
			case leg.Status == http.StatusOK:
			default:
				row.note("%s leg ended: %s", role, leg.Outcome)
			}
		}
	}
}
