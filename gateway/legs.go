package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/kvferry/kvferry/room"
)

// request is one client's request and its attempts.
type request struct {
	g              *Gateway
	w              http.ResponseWriter
	r              *http.Request
	body           []byte
	members        []member
	batch          int
	triedP, triedD map[*candidate]bool
	began          bool // a byte of the answer has left
	watch          *watch
}

// failure is why a leg failed: the worker's own answer, or a cause that its connection made.
type failure struct {
	side   room.Side
	resp   *http.Response // read into body
	body   []byte
	cause  room.Cause
	err    error // of the connection
	told   bool  // the worker itself told the cause
	worker *candidate
}

// leg is a worker's answer.
type leg struct {
	side room.Side
	resp *http.Response
	fail *failure
}

// run makes attempts until one succeeds, the budget is spent, or the client has left.
func (q *request) run() {
	for try := 0; ; try++ {
		fail := q.attempt()
		if fail == nil || q.r.Context().Err() != nil {
			return
		}
		if q.began {
			q.breakOff(fail)
			return
		}
		if try >= q.g.cfg.Retries || !fail.another() || len(q.triedP) >= q.g.prefill.size() && len(q.triedD) >= q.g.decode.size() {
			fail.answer(q.w)
			return
		}
		q.g.cfg.Log.Info("attempt failed, another pair is tried", "cause", fail.cause.Code, "side", fail.side, "worker", fail.cause.Peer, "text", fail.cause.Text)
	}
}

// another reports whether an attempt on another pair may end differently.
func (f *failure) another() bool {
	if f.resp != nil {
		return f.resp.StatusCode >= 500
	}
	return f.cause.Code.Class() == room.ClassRetry
}

// answer gives the client the worker's own answer, or the cause.
func (f *failure) answer(w http.ResponseWriter) {
	if f.resp == nil {
		writeError(w, f.cause.Code.HTTPStatus(), f.cause)
		return
	}
	copyHeader(w.Header(), f.resp.Header)
	w.WriteHeader(f.resp.StatusCode)
	_, _ = w.Write(f.body) // the client may be gone
}

// breakOff ends a stream that has begun with an error event, and no [DONE].
func (q *request) breakOff(f *failure) {
	c := f.cause
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": c.Error(), "type": "server_error", "code": c.Code.String(), // it always encodes
		"cause": map[string]string{"code": c.Code.String(), "side": c.Side.String(), "peer": c.Peer, "text": c.Text}}})
	if q.w.Header().Get("Content-Type") != "" && bytes.HasPrefix([]byte(q.w.Header().Get("Content-Type")), []byte("text/event-stream")) {
		_, _ = q.w.Write(append(append([]byte("data: "), body...), "\n\n"...)) // the client may be gone
		_ = http.NewResponseController(q.w).Flush()
		return
	}
	panic(http.ErrAbortHandler) // a cut body must not look whole
}

// pickNew prefers a worker that was not tried, and takes a tried one where there is no other. nil: the last worker has left.
func pickNew(p *pool, tried map[*candidate]bool) *candidate {
	c := p.pick(tried)
	if c == nil {
		c = p.pick(nil)
	}
	if c != nil {
		tried[c] = true
	}
	return c
}

// attempt sends both legs to a pair. nil: the answer has been given.
func (q *request) attempt() *failure {
	p, d := pickNew(q.g.prefill, q.triedP), pickNew(q.g.decode, q.triedD)
	if p == nil || d == nil {
		return &failure{side: room.Gateway, cause: room.NewCause(room.Unavailable, room.Gateway, "", "the last worker of a role has left")}
	}
	set, id := meeting(p.Bootstrap, q.batch)
	body := patch(q.body, q.members, set)
	// The legs end with the client, or with the attempt. Only prefill's leg may outlive a success, by the moment that its answer takes.
	ctx, cancel := context.WithCancel(context.WithoutCancel(q.r.Context()))
	stop := context.AfterFunc(q.r.Context(), cancel)
	legs := make(chan leg, 2)
	own := &watch{g: q.g} // q.watch is the next attempt's before this one's goroutines have all begun
	q.watch = own
	own.touch()
	own.owes[0].Store(p)
	own.owes[1].Store(d)
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	q.g.wg.Go(func() { own.run(watching, cancel) })
	var wg sync.WaitGroup
	send := func(side room.Side, c *candidate) {
		c.running.Add(1)
		wg.Add(1)
		q.g.wg.Go(func() {
			l := q.leg(ctx, side, c, body)
			if side == room.Prefill {
				c.running.Add(-1)
				own.answered(side)
			}
			own.touch()
			legs <- l
			wg.Done()
		})
	}
	send(room.Prefill, p)
	send(room.Decode, d)
	fail := q.meet(cancel, legs, d, id)
	d.running.Add(-1)
	if c := own.silent.Load(); c != nil && fail != nil {
		fail.side, fail.cause, fail.resp = c.Side, *c, nil
	}
	if fail == nil && stop() {
		t := time.AfterFunc(prefillRest, cancel)
		q.g.wg.Go(func() {
			wg.Wait()
			t.Stop()
			cancel()
		})
		return nil
	}
	cancel()
	wg.Wait()
	return fail
}

// prefillRest is how long prefill's leg may go on when decode's answer is complete.
const prefillRest = 10 * time.Second

// meet waits for the legs: the first that fails ends the other, decode's success goes to the client. A decode worker may send the headers of
// a 200 before anything has arrived, so its answer counts from its first byte, or when prefill has succeeded.
func (q *request) meet(cancel context.CancelFunc, legs <-chan leg, d *candidate, id room.ID) *failure {
	var first *failure
	var decode *http.Response
	prefilled := false
	var begun chan start
	for got := 0; got < 2; {
		var l leg
		select {
		case l = <-legs:
			got++
		case b := <-begun: // prefill's success is behind it
			return q.stream(decode, b, d, id)
		}
		switch {
		case l.fail != nil && first == nil:
			first = l.fail
			if !secondHand(first) || got == 2 || decode != nil {
				cancel()
				continue
			}
			// This side was told by the other: the other's own word is better, if it comes at once.
			t := time.AfterFunc(secondHandWait, cancel)
			defer t.Stop()
		case l.fail != nil:
			if secondHand(first) && !secondHand(l.fail) && !errors.Is(l.fail.err, context.Canceled) {
				first = l.fail
			}
			cancel()
		case l.side == room.Prefill:
			prefilled = true
		default:
			decode = l.resp
			if first == nil && !prefilled {
				begun = make(chan start, 1)
				q.g.wg.Go(func() { begun <- begin(decode) })
			}
		}
	}
	switch {
	case first == nil && begun != nil:
		return q.stream(decode, <-begun, d, id)
	case first == nil:
		return q.stream(decode, start{}, d, id)
	case begun != nil:
		<-begun // cancelled
	}
	if decode != nil {
		_ = decode.Body.Close() // it is not wanted any more
	}
	return first
}

// start is the first bytes of an answer.
type start struct {
	b   []byte
	err error
}

func begin(resp *http.Response) start {
	b := make([]byte, 32<<10)
	n, err := resp.Body.Read(b)
	return start{b[:n], err}
}

// secondHandWait is how long a leg that was told of a failure waits for the other's own word.
const secondHandWait = 20 * time.Millisecond

// secondHand reports a failure that the other leg's worker has told.
func secondHand(f *failure) bool {
	if !f.told {
		return false
	}
	switch f.cause.Code {
	case room.PeerFailed, room.PeerAborted, room.Aborted, room.ClientGone, room.PeerDead:
		return true
	default:
		return false
	}
}

// leg posts one leg and reads prefill's answer whole; decode's stays open.
func (q *request) leg(ctx context.Context, side room.Side, c *candidate, body []byte) leg {
	failed := func(code room.Code, err error) leg {
		if code == room.Unavailable && !errors.Is(err, context.Canceled) {
			c.broken.Store(time.Now().Add(restFor).UnixNano())
		}
		return leg{side: side, fail: &failure{side: side, worker: c, err: err, cause: room.NewCause(code, side, c.URL, err.Error())}}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+q.r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return failed(room.Internal, err)
	}
	copyHeader(req.Header, q.r.Header)
	resp, err := q.g.client.Do(req)
	if err != nil {
		return failed(room.Unavailable, err)
	}
	if side == room.Decode && resp.StatusCode == http.StatusOK {
		return leg{side: side, resp: resp}
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, q.g.cfg.MaxBody))
	_ = resp.Body.Close() // read to the end, or broken
	if resp.StatusCode == http.StatusOK {
		if err != nil {
			return failed(room.PeerDead, err)
		}
		return leg{side: side, resp: resp}
	}
	f := &failure{side: side, worker: c, resp: resp, body: answer}
	f.cause, f.told = causeIn(resp, answer, side, c.URL)
	return leg{side: side, fail: f}
}

// causeIn is the cause that a worker's error tells, else what its status says.
func causeIn(resp *http.Response, body []byte, side room.Side, peer string) (cause room.Cause, told bool) {
	var e struct {
		Error struct {
			Cause struct{ Code, Text string } `json:"cause"`
		} `json:"error"`
	}
	_ = json.Unmarshal(body, &e) // a foreign worker's error has no cause
	if code, ok := room.ParseCode(e.Error.Cause.Code); ok {
		return room.NewCause(code, side, peer, e.Error.Cause.Text), true
	}
	code := room.PeerFailed
	if resp.StatusCode < 500 {
		code = room.Invalid
	}
	return room.Causef(code, side, peer, "the worker answered %d", resp.StatusCode), false
}

// stream passes decode's answer on as it comes, from what was read of it already.
func (q *request) stream(resp *http.Response, s start, d *candidate, id room.ID) *failure {
	defer func() { _ = resp.Body.Close() }() // read to the end, or one end is gone
	copyHeader(q.w.Header(), resp.Header)
	q.w.Header().Set(RoomHeader, id.String())
	rc := http.NewResponseController(q.w)
	buf := make([]byte, 32<<10)
	for {
		if len(s.b) > 0 {
			q.watch.touch()
			q.began = true
			if _, err := q.w.Write(s.b); err != nil {
				return nil // the client is gone, and both legs with it
			}
			_ = rc.Flush()
		}
		switch {
		case errors.Is(s.err, io.EOF):
			if !q.began {
				q.w.WriteHeader(resp.StatusCode)
			}
			return nil
		case s.err != nil && q.r.Context().Err() != nil:
			return nil
		case s.err != nil:
			return &failure{side: room.Decode, worker: d, cause: room.NewCause(room.PeerDead, room.Decode, d.URL, "the answer broke off: "+s.err.Error())}
		}
		n, err := resp.Body.Read(buf)
		s = start{buf[:n], err}
	}
}
