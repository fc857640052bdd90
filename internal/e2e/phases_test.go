package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var long = strings.Repeat("Package http provides HTTP client and server implementations. ", 20)

const patience = 10 * time.Second // within which whoever asks gets an answer

// short is a request that is over in a moment.
const short = `{"prompt":"Reader is","max_tokens":3}`

// Each victim in each phase of a request: whoever waits learns of it, the survivors serve on, and nothing of the request is left on them.
func TestFailuresInEachPhase(t *testing.T) {
	for _, victim := range []string{"prefill killed", "decode killed", "prefill stopped", "decode stopped", "client gone"} {
		t.Run(victim+" before the request", func(t *testing.T) {
			t.Parallel()
			if victim == "client gone" {
				goneBeforeTheRequest(t)
				return
			}
			struckBeforeTheRequest(t, victim)
		})
		for _, held := range []string{"prefill", "decode"} {
			if victim == held+" stopped" {
				continue // it is what the phase before the request has done: one worker is stopped when the request comes
			}
			t.Run(fmt.Sprintf("%s in rendezvous with %s held", victim, held), func(t *testing.T) {
				t.Parallel()
				struckInRendezvous(t, victim, held)
			})
		}
		for _, phase := range []string{"prefill", "decode"} {
			t.Run(victim+" in "+phase, func(t *testing.T) { struckUnderWay(t, victim, phase) })
		}
	}
}

// struckBeforeTheRequest strikes while nothing runs, then sends two requests: one over a gateway that knows only the pair with the victim, so
// that it is certain to meet it, and one over a gateway that may try another pair, which is there.
func struckBeforeTheRequest(t *testing.T, victim string) {
	c := start(t, "64")
	one, retrying := front(t, "-1", c.p[:1], c.d[:1]), front(t, "1", c.p, c.d)
	dead := c.strike(t, victim, c.p[0], c.d[0], nil)
	var alone, again answer
	var wg sync.WaitGroup
	wg.Go(func() { alone = one.post(t.Context(), short) })
	wg.Go(func() { again = retrying.post(t.Context(), short) })
	wg.Wait()
	c.judge(t, victim, "before the request", alone)
	if again.err != nil || again.status != 200 {
		t.Errorf("with another pair to try: %d %v %.300s, want success", again.status, again.err, again.body)
	}
	if alone.took > patience || again.took > patience {
		t.Errorf("the clients waited %v and %v", alone.took, again.took)
	}
	c.recovered(t, dead)
}

// goneBeforeTheRequest is clients that leave when half of their request is out, in the header or in the body, with an end or with a reset.
// No worker hears of them, and the gateway has no descriptor more afterwards.
func goneBeforeTheRequest(t *testing.T) {
	c := start(t, "64")
	before := c.gateway.descriptors(t)
	whole := "POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + short
	for _, half := range []string{whole[:60], whole} {
		for _, reset := range []bool{false, true} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(c.gateway.ready.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write([]byte(half)); err != nil {
				t.Error(err)
			}
			until(t, "the gateway has taken the connection", func() bool { return c.gateway.descriptors(t) > before })
			if reset {
				_ = conn.(*net.TCPConn).SetLinger(0) // Close resets then
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			until(t, "the gateway has let the connection go", func() bool { return c.gateway.descriptors(t) <= before })
		}
	}
	c.recovered(t, nil)
}

// struckInRendezvous strikes while one side has the room open and waits for the other, which is held: it was stopped before the request came.
// That is certain to be rendezvous. A decode worker that is held has published no pages, so prefill waits for them; a prefill worker that is
// held has not said where its ranks are, which decode asks for anew in each cluster, so decode waits for that. The request goes over a gateway
// that knows this pair alone.
//
// A victim that is not held itself is struck while it waits, then the held one goes on and finds it killed or stopped, or its client gone. A
// held victim can only be killed: decode loses the one that it asks, prefill the one whose pages it waits for.
func struckInRendezvous(t *testing.T, victim, held string) {
	c := start(t, "64")
	one := front(t, "-1", c.p[:1], c.d[:1])
	halted, waiting := c.p[0], c.d[0]
	if held == "decode" {
		halted, waiting = waiting, halted
	}
	halted.signal(t, syscall.SIGSTOP)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var got answer
	var wg sync.WaitGroup
	wg.Go(func() { got = one.post(ctx, short) })
	until(t, "the room is open", func() bool { v := waiting.tables(t); return v.Jobs == 1 && v.Ranks[0].Rooms == 1 })

	began := time.Now()
	dead := c.strike(t, victim, c.p[0], c.d[0], leave)
	if victim == "client gone" {
		until(t, "the worker that waits learns it", func() bool { return waiting.tables(t).sameAs(c.base[waiting]) })
	}
	if dead != halted {
		halted.signal(t, syscall.SIGCONT)
	}
	wg.Wait()
	if took := time.Since(began); took > patience {
		t.Errorf("the client waited %v", took)
	}
	c.judge(t, victim, "rendezvous", got)
	c.recovered(t, dead)
}

// struckUnderWay strikes during prefill, or during decode when prefill has ended.
func struckUnderWay(t *testing.T, victim, phase string) {
	c := start(t, "4")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var got answer
	var wg sync.WaitGroup
	wg.Go(func() {
		got = c.post(ctx, fmt.Sprintf(`{"prompt":%q,"max_tokens":150,"ignore_eos":true,"temperature":0,"stream":true}`, long))
	})
	var p, d *process
	until(t, "both legs are under way", func() bool { p, d = busy(t, c.p), busy(t, c.d); return p != nil && d != nil })
	if phase == "decode" {
		until(t, "prefill has ended", func() bool { return p.tables(t).Jobs == 0 })
	}
	began := time.Now()
	dead := c.strike(t, victim, p, d, leave)
	wg.Wait()
	if took := time.Since(began); took > patience {
		t.Errorf("the client waited %v", took)
	}
	c.judge(t, victim, phase, got)
	c.recovered(t, dead)
}

func (c *cluster) strike(t *testing.T, victim string, p, d *process, leave func()) (dead *process) {
	who, what, _ := strings.Cut(victim, " ")
	switch who {
	case "client":
		leave()
		return nil
	case "prefill":
		dead = p
	default:
		dead = d
	}
	sig := syscall.SIGKILL
	if what == "stopped" {
		sig = syscall.SIGSTOP
	}
	dead.signal(t, sig)
	return dead
}

// judge checks what the client got. Decode needs prefill no more once the KV is there, so that request succeeds.
func (c *cluster) judge(t *testing.T, victim, phase string, got answer) {
	switch {
	case victim == "client gone":
		if got.err == nil && !strings.Contains(got.body, "[DONE]") {
			t.Errorf("the client that left got %d %.200s", got.status, got.body)
		}
	case strings.HasPrefix(victim, "prefill") && phase == "decode":
		if got.err != nil || got.status != 200 || !strings.Contains(got.body, "[DONE]") {
			t.Errorf("%d %v %.300s, want the whole stream", got.status, got.err, got.body)
		}
	default:
		if got.err != nil || !strings.Contains(got.body, `"cause"`) || strings.Contains(got.body, "[DONE]") || phase != "decode" && got.status < 500 {
			t.Errorf("%d %v %.300s, want an error with its cause", got.status, got.err, got.body)
		}
	}
}

func (c *cluster) recovered(t *testing.T, dead *process) {
	until(t, "a new request succeeds", func() bool {
		a := c.post(t.Context(), short)
		return a.err == nil && a.status == 200
	})
	for x, want := range c.base {
		if x == dead {
			continue
		}
		until(t, "tables return", func() bool { return x.tables(t).sameAs(want) })
	}
}
