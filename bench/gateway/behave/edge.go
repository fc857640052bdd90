package behave

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/fakeworker"
	"github.com/kvferry/kvferry/bench/gateway/load"
)

// edgeCases are about the gateway as an HTTP server.
func edgeCases() []Case {
	cases := []Case{
		{Name: "ok", Want: "200, one leg each", run: func(e *env, row *Row) { ok(e, row, false) }},
		{Name: "ok-stream", Want: "200, 8 events and [DONE]", run: func(e *env, row *Row) { ok(e, row, true) }},
		{Name: "slow-headers", Want: "connection closed within 35 s", run: slow("Host: gateway\r\n", "X")},
		{Name: "slow-body", Want: "connection closed within 35 s", run: slow("Host: gateway\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", " ")},
		{Name: "request-headers", Want: "X-Request-Id and traceparent reach both legs", run: headers},
		{Name: "routes", Want: "told for the record", run: routes},
		{Name: "abort-request", Want: "reaches the workers", run: abort},
		{Name: "metrics", Want: "told for the record", run: metrics},
	}
	for _, s := range []struct{ name, want, framing string }{
		{"smuggle-length-and-chunked", "400, or answered once and closed", "Content-Length: %[2]d\r\nTransfer-Encoding: chunked\r\n\r\n%[1]x\r\n%[3]s\r\n0\r\n\r\n%[4]s"},
		{"smuggle-two-lengths", "400", "Content-Length: %[1]d\r\nContent-Length: %[2]d\r\n\r\n%[3]s%[4]s"},
		{"smuggle-unknown-encoding", "400 or 501", "Transfer-Encoding: xchunked\r\nContent-Length: %[1]d\r\n\r\n%[3]s%[4]s"},
		{"smuggle-space-before-colon", "400", "Content-Length : %[1]d\r\n\r\n%[3]s%[4]s"},
	} {
		cases = append(cases, Case{Name: s.name, Want: s.want, run: smuggle(s.framing)})
	}
	return cases
}

func ok(e *env, row *Row, stream bool) {
	e.pool.SetTiming(fakeworker.Timing{Tokens: 8})
	a := e.ask(e.ctx, e.body(stream), options{stream: stream})
	e.waitIdle()
	row.take(a)
	row.Verdict = Wrong
	if a.status == 200 && (!stream || a.complete && a.events == 8) && len(e.legs(fakeworker.Prefill)) == 1 && len(e.legs(fakeworker.Decode)) == 1 {
		row.Verdict = Right
	}
	row.note("content type %s", a.header.Get("Content-Type"))
}

// slow sends the start of a request and then one byte every half second.
func slow(start, drip string) func(*env, *Row) {
	return func(e *env, row *Row) {
		const limit = 35 * time.Second
		conn, err := e.raw()
		if err != nil {
			row.Verdict, row.Got = Wrong, err.Error()
			return
		}
		defer conn.Close()
		began := time.Now()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\n%s%s", load.Paths[e.api], e.headerLines(), start)
		closed := make(chan string, 1)
		go func() {
			conn.SetReadDeadline(began.Add(limit))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			switch {
			case err == nil:
				closed <- resp.Status
			case time.Since(began) >= limit:
				closed <- ""
			default:
				closed <- "closed"
			}
		}()
		row.Verdict = Wrong
		for {
			select {
			case how := <-closed:
				row.ClientMS = ms(time.Since(began))
				row.Got = fmt.Sprintf("still open after %v", limit)
				if how != "" {
					row.Verdict, row.Got = Right, fmt.Sprintf("%s after %.1f s", how, time.Since(began).Seconds())
				}
				return
			case <-time.After(500 * time.Millisecond):
				_, _ = io.WriteString(conn, drip)
			}
		}
	}
}

func headers(e *env, row *Row) {
	sent := http.Header{
		"X-Request-Id":  {"req-1"},
		"Traceparent":   {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"Authorization": {"Bearer secret"},
		"X-Custom":      {"custom"},
	}
	a := e.ask(e.ctx, e.body(false), options{header: sent})
	e.waitIdle()
	row.take(a)
	row.Verdict = Right
	for _, leg := range slices.Concat(e.legs(fakeworker.Prefill), e.legs(fakeworker.Decode)) {
		var got []string
		for name, v := range sent {
			switch have := leg.Header.Get(name); have {
			case v[0]:
				got = append(got, name)
			case "":
			default:
				got = append(got, name+" changed to "+have)
			}
		}
		slices.Sort(got)
		row.note("%s got %s", leg.Worker, strings.Join(got, ", "))
		if leg.Header.Get("X-Request-Id") != "req-1" || !strings.Contains(leg.Header.Get("Traceparent"), "0af7651916cd43dd8448eb211c80319c") {
			row.Verdict = Wrong
		}
	}
	row.note("the answer has X-Request-Id %q", a.header.Get("X-Request-Id"))
}

func routes(e *env, row *Row) {
	row.Verdict = Info
	var got []string
	for _, path := range []string{"/health", "/healthz", "/readiness", "/health_generate", "/v1/models", "/get_model_info", "/model_info", "/get_server_info", "/server_info", "/nothing"} {
		a := e.ask(e.ctx, nil, options{method: "GET", path: path})
		got = append(got, fmt.Sprintf("%s %d", path, a.status))
	}
	a := e.ask(e.ctx, []byte("{}"), options{path: "/flush_cache"})
	row.Got = strings.Join(append(got, fmt.Sprintf("POST /flush_cache %d", a.status)), ", ")
}

func abort(e *env, row *Row) {
	a := e.ask(e.ctx, []byte(`{"rid":"r1"}`), options{path: "/abort_request"})
	row.take(a)
	row.Verdict = Wrong
	for _, l := range e.pool.Legs() {
		if l.Path == "/abort_request" {
			row.Verdict = Right
			row.note("reached %s", l.Worker)
		}
	}
}

func metrics(e *env, row *Row) {
	row.Verdict, row.Got = Info, "none"
	must(e.p(0).SetBehaviour(fakeworker.Behaviour{Mode: fakeworker.Status, Status: 503, Times: 1}))
	for range 3 {
		e.ask(e.ctx, e.body(false), options{})
	}
	if e.gw.Metrics == "" {
		return
	}
	resp, err := http.Get(e.gw.Metrics)
	if err != nil {
		row.Got = err.Error()
		return
	}
	defer resp.Body.Close()
	row.Status = resp.StatusCode
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	var names []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" {
			names = append(names, f[2])
		}
	}
	own := slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return strings.HasPrefix(n, "go_") || strings.HasPrefix(n, "process_") || strings.HasPrefix(n, "python_")
	})
	row.Got = fmt.Sprintf("%d, %d families, %d of its own", resp.StatusCode, len(names), len(own))
	row.note("%s", strings.Join(own, " "))
}

// smuggle sends one request whose length can be read in two ways, with a second
// one hidden behind it. The framing is a format over the length of the body, of
// all that follows the headers, the body, and the hidden request.
func smuggle(framing string) func(*env, *Row) {
	return func(e *env, row *Row) {
		conn, err := e.raw()
		if err != nil {
			row.Verdict, row.Got = Wrong, err.Error()
			return
		}
		defer conn.Close()
		body := string(e.body(false))
		hidden := "GET /smuggled HTTP/1.1\r\nHost: gateway\r\n\r\n"
		chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n%s", len(body), body, hidden)
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n%s", load.Paths[e.api], e.headerLines())
		fmt.Fprintf(conn, framing, len(body), len(chunked), body, hidden)
		statuses, closed := readStatuses(conn)
		row.Got = fmt.Sprintf("answers %v", statuses)
		if closed {
			row.Got += ", closed"
		}
		row.Verdict = Wrong
		if len(statuses) > 0 {
			row.Status = statuses[0]
		}
		e.waitIdle()
		for _, l := range e.pool.Legs() {
			if l.Path == "/smuggled" {
				row.note("the hidden request reached %s", l.Worker)
			}
		}
		if row.Status == 400 || row.Status == 501 || row.Status == 200 && len(statuses) == 1 && closed {
			row.Verdict = Right
		}
	}
}

// readStatuses reads answers until the connection is closed or three seconds are over.
func readStatuses(conn net.Conn) (statuses []int, closed bool) {
	conn.SetReadDeadline(time.Now().Add(3 * time.Second))
	in := bufio.NewReader(conn)
	for {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			var timeout net.Error
			return statuses, !(errors.As(err, &timeout) && timeout.Timeout()) && !strings.Contains(err.Error(), "timeout")
		}
		statuses = append(statuses, resp.StatusCode)
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}
