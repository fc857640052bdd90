package behave

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/load"
)

// answer is what a client got.
type answer struct {
	sent, first, done time.Time // first byte of the body; end of the answer
	status            int       // 0 if no headers came
	header            http.Header
	text              string // start of the body
	events            int    // data lines, [DONE] not counted
	complete          bool   // [DONE] came
	stream            bool
	err               error
	gaveUp            bool // the client stopped waiting
}

func (a answer) String() string {
	switch {
	case a.status == 0 && a.gaveUp:
		return "no answer"
	case a.status == 0:
		return "connection ended without an answer"
	case !a.stream || a.status != http.StatusOK:
		s := fmt.Sprint(a.status)
		if a.err != nil {
			s += ", body cut short"
		}
		return s
	case a.complete:
		return fmt.Sprintf("%d, complete stream of %d", a.status, a.events)
	case a.gaveUp:
		return fmt.Sprintf("%d, stream open after %d events", a.status, a.events)
	case a.err != nil:
		return fmt.Sprintf("%d, stream aborted after %d events", a.status, a.events)
	default:
		return fmt.Sprintf("%d, stream ended cleanly after %d events without [DONE]", a.status, a.events)
	}
}

// options of one request beyond its body.
type options struct {
	stream  bool
	header  http.Header
	method  string // default POST
	path    string // default the case's API
	onEvent func(n int)
}

// ask sends one request on a connection of its own and reads the answer to its
// end. It leaves when ctx is done, and gives up after Limits.Answer.
func (e *env) ask(ctx context.Context, body []byte, o options) answer {
	ctx, stop := context.WithTimeoutCause(ctx, e.limits.Answer, errGaveUp)
	defer stop()
	a := answer{sent: time.Now(), stream: o.stream}
	a.err = e.exchange(ctx, body, o, &a)
	a.done = time.Now()
	a.gaveUp = errors.Is(context.Cause(ctx), errGaveUp)
	return a
}

func (e *env) exchange(ctx context.Context, body []byte, o options, a *answer) error {
	if o.path == "" {
		o.path = load.Paths[e.api]
	}
	if o.method == "" {
		o.method = "POST"
	}
	req, err := http.NewRequestWithContext(ctx, o.method, e.gw.URL+o.path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = e.gw.Header.Clone()
	req.Header.Set("Content-Type", "application/json")
	for name, values := range o.header {
		req.Header[name] = values
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	in := bufio.NewReader(resp.Body)
	var text strings.Builder
	for {
		line, err := in.ReadString('\n')
		if len(line) > 0 && a.first.IsZero() {
			a.first = time.Now()
		}
		if text.Len() < 64<<10 {
			text.WriteString(line)
			a.text = text.String()
		}
		switch {
		case strings.HasPrefix(line, "data: [DONE]"):
			a.complete = true
		case strings.HasPrefix(line, "data:"):
			a.events++
			if o.onEvent != nil {
				o.onEvent(a.events)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// raw opens a connection for requests that net/http would not send.
func (e *env) raw() (net.Conn, error) {
	return net.DialTimeout("tcp", strings.TrimPrefix(e.gw.URL, "http://"), 2*time.Second)
}

// headerLines are the gateway's own headers as text for raw requests.
func (e *env) headerLines() string {
	var b bytes.Buffer
	_ = e.gw.Header.Write(&b)
	return b.String()
}
