package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Headers of an answer.
const (
	CauseHeader = "X-Kvferry-Cause"
	RoomHeader  = "X-Kvferry-Room"
)

// Config describes a gateway. Zero values take the defaults.
type Config struct {
	Prefill, Decode []Worker
	MaxBody         int64         // bytes; default 16 MiB
	Retries         int           // attempts after the first; default 1, negative: none
	Dial            time.Duration // default 2 s
	ReadBody        time.Duration // how long a body may take; default 30 s
	Quiet           time.Duration // after which workers that owe an answer are asked whether they live; default 2 s
	Log             *slog.Logger
}

// Gateway is an http.Handler. Close it when it serves no more.
type Gateway struct {
	cfg             Config
	prefill, decode *pool
	client          *http.Client
	mux             *http.ServeMux
	wg              sync.WaitGroup // legs
}

// New makes a gateway.
func New(cfg Config) (*Gateway, error) {
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 16 << 20
	}
	if cfg.Retries == 0 {
		cfg.Retries = 1
	}
	if cfg.Dial == 0 {
		cfg.Dial = 2 * time.Second
	}
	if cfg.Quiet == 0 {
		cfg.Quiet = 2 * time.Second
	}
	if cfg.ReadBody == 0 {
		cfg.ReadBody = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for _, w := range cfg.Prefill {
		if w.Bootstrap == "" {
			return nil, fmt.Errorf("gateway: prefill worker %s has no bootstrap address", w.URL)
		}
	}
	d := &net.Dialer{Timeout: cfg.Dial}
	g := &Gateway{cfg: cfg, prefill: newPool(cfg.Prefill), decode: newPool(cfg.Decode), mux: http.NewServeMux(), client: &http.Client{
		Transport:     &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/generate"} {
		g.mux.HandleFunc("POST "+path, g.generate)
	}
	g.mux.HandleFunc("POST /abort_request", g.fanOut)
	g.mux.HandleFunc("GET /health", g.health)
	g.mux.HandleFunc("GET /v1/models", g.models)
	return g, nil
}

// Update replaces the workers, as a registry or an operator says. It may be called at any time.
func (g *Gateway) Update(prefill, decode []Worker) {
	g.prefill.update(prefill)
	g.decode.update(decode)
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.mux.ServeHTTP(w, r) }

// Close waits for the legs that are on their way and gives the connections to workers back. The server must have ended.
func (g *Gateway) Close() {
	g.wg.Wait()
	g.client.CloseIdleConnections()
}

// health is whether both roles have a worker that answers.
func (g *Gateway) health(w http.ResponseWriter, r *http.Request) {
	for name, p := range map[string]*pool{"prefill": g.prefill, "decode": g.decode} {
		if !g.anyHealthy(r.Context(), p) {
			writeError(w, http.StatusServiceUnavailable, room.Causef(room.Unavailable, room.Gateway, "", "no %s worker is healthy", name))
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

func (g *Gateway) anyHealthy(ctx context.Context, p *pool) bool {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Dial)
	defer cancel()
	for _, c := range p.all() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/health", nil)
		if err != nil {
			continue
		}
		resp, err := g.client.Do(req)
		if err != nil {
			continue
		}
		_ = resp.Body.Close() // nothing in it is wanted
		if resp.StatusCode == http.StatusOK {
			return true
		}
	}
	return false
}

// models is what the first decode worker that answers says.
func (g *Gateway) models(w http.ResponseWriter, r *http.Request) {
	tried := map[*candidate]bool{}
	for {
		c := g.decode.pick(tried)
		if c == nil {
			writeError(w, http.StatusServiceUnavailable, room.NewCause(room.Unavailable, room.Gateway, "", "no decode worker answers"))
			return
		}
		tried[c] = true
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, c.URL+"/v1/models", nil)
		if err != nil {
			continue
		}
		resp, err := g.client.Do(req)
		if err != nil {
			continue
		}
		copyAnswer(w, resp)
		return
	}
}

// writeError answers with an error of the gateway's own or one that a worker's connection made.
func writeError(w http.ResponseWriter, status int, c room.Cause) {
	kind := "server_error"
	if status < 500 {
		kind = "invalid_request_error"
	}
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": c.Error(), "type": kind, "code": c.Code.String(), "param": nil, // it always encodes
		"cause": map[string]string{"code": c.Code.String(), "side": c.Side.String(), "peer": c.Peer, "text": c.Text}}})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set(CauseHeader, c.Code.String())
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}

func (g *Gateway) generate(w http.ResponseWriter, r *http.Request) {
	if len(r.TransferEncoding) > 0 {
		w.Header().Set("Connection", "close") // a length may stand beside the chunks: nothing behind this body is read as a request
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(g.cfg.ReadBody))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.cfg.MaxBody))
	_ = rc.SetReadDeadline(time.Time{})
	var tooLong *http.MaxBytesError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		writeError(w, http.StatusRequestTimeout, room.Causef(room.Invalid, room.Gateway, "", "the body did not come within %v", g.cfg.ReadBody))
		return
	case errors.As(err, &tooLong):
		writeError(w, http.StatusRequestEntityTooLarge, room.Causef(room.Invalid, room.Gateway, "", "the body is longer than %d bytes", g.cfg.MaxBody))
		return
	case err != nil:
		return // the client is gone
	}
	members, err := scan(body)
	if err != nil {
		writeError(w, http.StatusBadRequest, room.NewCause(room.Invalid, room.Gateway, "", err.Error()))
		return
	}
	if twice(members) != "" {
		writeError(w, http.StatusBadRequest, room.Causef(room.Invalid, room.Gateway, "", "member %q is there twice", twice(members)))
		return
	}
	if g.prefill.size() == 0 || g.decode.size() == 0 {
		writeError(w, http.StatusServiceUnavailable, room.Causef(room.Unavailable, room.Gateway, "", "%d prefill and %d decode workers, want one of each", g.prefill.size(), g.decode.size()))
		return
	}
	q := &request{g: g, w: w, r: r, body: body, members: members, batch: batchOf(r.URL.Path, body, members), triedP: map[*candidate]bool{}, triedD: map[*candidate]bool{}}
	q.run()
}

// twice is a meeting member that a body has more than once: workers differ in which one counts.
func twice(members []member) string {
	seen := map[string]bool{}
	for _, m := range members {
		if strings.HasPrefix(m.name, "bootstrap_") && seen[m.name] {
			return m.name
		}
		seen[m.name] = true
	}
	return ""
}

// batchOf is how many prompts a batch has, for which SGLang's workers want lists; 0: it is one request.
func batchOf(path string, body []byte, members []member) int {
	for _, m := range members {
		v := body[m.from:m.to]
		if v[0] != '[' || len(v) < 2 {
			continue
		}
		inner := v[space(v, 1)]
		switch {
		case path == "/generate" && m.name == "text",
			path == "/generate" && m.name == "input_ids" && inner == '[',
			path == "/v1/completions" && m.name == "prompt" && (inner == '[' || inner == '"'):
			return max(0, elements(v))
		}
	}
	return 0
}

// fanOut passes a request on to every worker, and answers 200 if one of them did.
func (g *Gateway) fanOut(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.cfg.MaxBody))
	if err != nil {
		writeError(w, http.StatusBadRequest, room.NewCause(room.Invalid, room.Gateway, "", err.Error()))
		return
	}
	status := http.StatusBadGateway
	for _, c := range append(g.prefill.all(), g.decode.all()...) {
		ctx, cancel := context.WithTimeout(r.Context(), g.cfg.Dial)
		req, err := http.NewRequestWithContext(ctx, r.Method, c.URL+r.URL.RequestURI(), bytes.NewReader(body))
		if err == nil {
			copyHeader(req.Header, r.Header)
			if resp, err := g.client.Do(req); err == nil {
				_ = resp.Body.Close() // only its status counts
				if status != http.StatusOK {
					status = resp.StatusCode
				}
			}
		}
		cancel()
	}
	w.WriteHeader(status)
}

// newRoom is a random 63-bit number.
func newRoom() room.ID {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return room.ID(binary.LittleEndian.Uint64(b[:])) & room.MaxID
}

// meeting is the members by which the legs meet, a list of each for a batch. The first room names the attempt.
func meeting(bootstrap string, batch int) ([]setting, room.ID) {
	host, port, _ := net.SplitHostPort(bootstrap)
	quoted, _ := json.Marshal(host) // it always encodes
	id := newRoom()
	if batch == 0 {
		return []setting{{"bootstrap_host", string(quoted)}, {"bootstrap_port", port}, {"bootstrap_room", id.String()}}, id
	}
	rooms := []string{id.String()}
	for range batch - 1 {
		rooms = append(rooms, newRoom().String())
	}
	list := func(s string) string { return "[" + strings.TrimSuffix(strings.Repeat(s+",", batch), ",") + "]" }
	return []setting{{"bootstrap_host", list(string(quoted))}, {"bootstrap_port", list(port)}, {"bootstrap_room", "[" + strings.Join(rooms, ",") + "]"}}, id
}

// hop are headers of one connection, which are not passed on.
var hop = map[string]bool{"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Transfer-Encoding": true, "Te": true, "Trailer": true, "Upgrade": true,
	"Content-Length": true, "Host": true, "Accept-Encoding": true, "Expect": true}

func copyHeader(dst, src http.Header) {
	for k, v := range src {
		if !hop[k] {
			dst[k] = v
		}
	}
}

// copyAnswer passes a worker's whole answer on.
func copyAnswer(w http.ResponseWriter, resp *http.Response) {
	defer func() { _ = resp.Body.Close() }() // read to the end, or the client is gone
	copyHeader(w.Header(), resp.Header)
	if resp.ContentLength >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // either end may be gone
}
