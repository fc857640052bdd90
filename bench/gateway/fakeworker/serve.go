package fakeworker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/jsonscan"
)

// api tells the shapes of answers apart.
type api int

const (
	generate api = iota
	chat
	completions
)

var inferencePaths = map[string]api{
	"/generate":            generate,
	"/v1/chat/completions": chat,
	"/v1/completions":      completions,
}

// maxBody is far above the largest body of the behaviour table.
const maxBody = 256 << 20

func (w *Worker) routes() http.Handler {
	mux := http.NewServeMux()
	for path, a := range inferencePaths {
		mux.HandleFunc("POST "+path, func(rw http.ResponseWriter, r *http.Request) { w.infer(rw, r, a) })
	}
	for _, path := range []string{"/health", "/health_generate"} {
		mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, r *http.Request) {
			if w.Behaviour().Unhealthy {
				rw.WriteHeader(http.StatusServiceUnavailable)
			}
		})
	}
	for _, path := range []string{"/server_info", "/get_server_info"} {
		mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, r *http.Request) { writeJSON(rw, w.serverInfo()) })
	}
	for _, path := range []string{"/model_info", "/get_model_info"} {
		mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, r *http.Request) { writeJSON(rw, w.modelInfo()) })
	}
	mux.HandleFunc("GET /v1/models", func(rw http.ResponseWriter, r *http.Request) {
		model := w.pool.cfg.Model
		writeJSON(rw, map[string]any{"object": "list", "data": []any{
			map[string]any{"id": model, "object": "model", "created": 0, "owned_by": "sglang", "root": model, "max_model_len": 131072},
		}})
	})
	mux.HandleFunc("GET /get_load", func(rw http.ResponseWriter, r *http.Request) {
		writeJSON(rw, []any{map[string]any{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}})
	})
	for _, path := range []string{"/flush_cache", "/abort_request"} {
		mux.HandleFunc("POST "+path, func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
			e := w.open(r, body)
			e.update(func(l *Leg) { l.Status, l.Ended, l.Outcome = 200, time.Now(), "answered" })
		})
	}
	// SGLang's bootstrap server answers here, on a port of its own.
	mux.HandleFunc("/route", func(rw http.ResponseWriter, r *http.Request) {
		if w.role != Prefill {
			http.NotFound(rw, r)
			return
		}
		writeJSON(rw, map[string]any{"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 1, "kv_cache_dtype": "auto", "follow_bootstrap_room": true})
	})
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		e := w.open(r, nil)
		e.update(func(l *Leg) { l.Status, l.Ended, l.Outcome = 404, time.Now(), "no such route" })
		http.NotFound(rw, r)
	})
	return mux
}

func (w *Worker) serverInfo() any {
	mode := string(w.role)
	if w.role == Plain {
		mode = "null"
	}
	model := w.pool.cfg.Model
	return map[string]any{
		"model_path": model, "served_model_name": model, "tokenizer_path": model, "version": "fake",
		"disaggregation_mode": mode, "disaggregation_bootstrap_port": w.bootstrapPort,
		"tp_size": 1, "dp_size": 1, "pp_size": 1, "load_balance_method": "round_robin",
		"status": "ready", "max_total_num_tokens": 1 << 20, "max_running_requests": 1024,
		"internal_states": []any{map[string]any{"last_gen_throughput": 0.0}},
	}
}

func (w *Worker) modelInfo() any {
	model := w.pool.cfg.Model
	return map[string]any{"model_path": model, "tokenizer_path": model, "is_generation": true, "model_type": "llama", "architectures": []string{"LlamaForCausalLM"}}
}

func writeJSON(rw http.ResponseWriter, v any) {
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(v)
}

// open starts a record, or returns nil when recording is off.
func (w *Worker) open(r *http.Request, body []byte) *entry {
	if !w.pool.cfg.Record {
		return nil
	}
	leg := Leg{
		Worker: w.name, Role: w.role, Method: r.Method, Path: r.URL.Path,
		Arrived: time.Now(), Header: r.Header.Clone(), BodyBytes: len(body),
	}
	leg.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	if r.TransferEncoding != nil {
		leg.Header["Transfer-Encoding"] = r.TransferEncoding
	}
	return w.pool.ledger.open(leg)
}

// errPeerGone ends a leg whose client disconnected.
var errPeerGone = errors.New("client gone")

// infer serves one leg.
func (w *Worker) infer(rw http.ResponseWriter, r *http.Request, a api) {
	e := w.open(r, nil)
	buf := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(buf)
	buf.Reset()
	_, err := buf.ReadFrom(http.MaxBytesReader(rw, r.Body, maxBody))
	body := buf.Bytes()
	e.update(func(l *Leg) {
		l.BodyRead, l.BodyBytes = time.Now(), len(body)
		sum := sha256.Sum256(body)
		l.BodyHash = hex.EncodeToString(sum[:])
		if len(body) <= w.pool.cfg.KeepBody {
			l.Body = bytes.Clone(body)
		}
	})
	outcome := "answered"
	if err != nil {
		err = fmt.Errorf("read body: %w", err)
	} else {
		err = w.answer(rw, r, a, body, e)
	}
	if errors.Is(err, errPeerGone) && w.dead.Load() {
		err = errors.New("worker died")
	}
	if err != nil {
		outcome = err.Error()
	}
	e.update(func(l *Leg) {
		l.Ended, l.Outcome = time.Now(), outcome
		if errors.Is(err, errPeerGone) {
			l.Gone = l.Ended
		}
	})
}

var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (w *Worker) answer(rw http.ResponseWriter, r *http.Request, a api, body []byte, e *entry) error {
	ctx := r.Context()
	req, err := parse(body)
	e.update(func(l *Leg) {
		l.Room, l.BootstrapHost, l.BootstrapPort, l.RoomFields = string(req.room), string(req.host), string(req.port), req.roomFields
	})
	if err != nil {
		return w.fail(rw, e, http.StatusBadRequest, "", err.Error())
	}

	b := w.take()
	if b.Mode != OK && b.Mode != "" && b.Mode != DieMidStream {
		if b.Mode == Hang {
			return pause(ctx, 0, true)
		}
		if err := pause(ctx, time.Duration(b.After), false); err != nil {
			return err
		}
		switch b.Mode {
		case Status:
			return w.fail(rw, e, b.Status, b.RetryAfter, "injected by "+w.name)
		case ResetAfterHeaders:
			rw.Header().Set("Content-Type", contentType(req.stream))
			rw.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(rw).Flush()
			e.update(func(l *Leg) { l.Status, l.Answered = 200, time.Now() })
		default:
		}
		return reset(rw)
	}

	t := w.pool.Timing()
	if t.EarlyHeaders && req.stream {
		rw.Header().Set("Content-Type", contentType(true))
		rw.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(rw).Flush()
	}
	if w.role != Plain {
		if len(req.rooms) == 0 {
			return w.fail(rw, e, http.StatusBadRequest, "", "disaggregated request without a bootstrap room")
		}
		if err := w.meet(ctx, req.rooms, time.Duration(t.Prefill)); err != nil {
			return err
		}
	} else if err := pause(ctx, time.Duration(t.Prefill), false); err != nil {
		return err
	}
	if w.role == Prefill {
		t.Tokens, t.Token = 1, 0
	}
	if b.Mode == DieMidStream {
		t.Tokens = min(t.Tokens, max(b.AtToken, 1))
	}
	a.send(ctx, rw, w, req, t, b.Mode == DieMidStream, e)
	if ctx.Err() != nil {
		return errPeerGone
	}
	if b.Mode == DieMidStream {
		return reset(rw)
	}
	return nil
}

// meet is the hand-off: it returns when this leg's part of it is over.
func (w *Worker) meet(ctx context.Context, ids []string, prefill time.Duration) error {
	joined := make([]*room, len(ids))
	for i, id := range ids {
		joined[i] = w.pool.rooms.join(id)
		defer w.pool.rooms.leave(id)
	}
	if w.role != Prefill {
		for _, r := range joined { // all of a batch before waiting for any
			r.decodeOnce.Do(func() { close(r.decodeHere) })
		}
	}
	for _, r := range joined {
		wait := r.kvHere
		if w.role == Prefill {
			wait = r.decodeHere
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return errPeerGone
		}
	}
	if w.role != Prefill {
		return nil
	}
	if err := pause(ctx, prefill, false); err != nil {
		return err
	}
	for _, r := range joined {
		r.kvOnce.Do(func() { close(r.kvHere) })
	}
	return nil
}

// pause waits for d, or for ever, unless the client leaves.
func pause(ctx context.Context, d time.Duration, forever bool) error {
	if d <= 0 && !forever {
		return nil
	}
	var timeout <-chan time.Time
	if !forever {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-timeout:
		return nil
	case <-ctx.Done():
		return errPeerGone
	}
}

// fail answers with an error in the shape of SGLang's OpenAI routes.
func (w *Worker) fail(rw http.ResponseWriter, e *entry, status int, retryAfter, message string) error {
	if retryAfter != "" {
		rw.Header().Set("Retry-After", retryAfter)
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	fmt.Fprintf(rw, `{"object":"error","message":%q,"type":%q,"param":null,"code":%d}`, message, http.StatusText(status), status)
	e.update(func(l *Leg) { l.Status, l.Answered = status, time.Now() })
	return fmt.Errorf("answered %d", status)
}

// reset closes the connection so that the peer sees ECONNRESET.
func reset(rw http.ResponseWriter) error {
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
	return errors.New("reset by worker")
}

// request is what a worker needs to know of a body.
type request struct {
	stream     bool
	room       []byte   // raw
	rooms      []string // the elements of room, or room itself
	host, port []byte   // raw
	roomFields int
}

func parse(body []byte) (request, error) {
	var req request
	fields, err := jsonscan.Fields(body)
	if err != nil {
		return req, err
	}
	for _, f := range fields {
		switch f.Name {
		case "stream":
			req.stream = string(f.Value) == "true"
		case "bootstrap_room":
			req.room = f.Value
			req.roomFields++
		case "bootstrap_host":
			req.host = f.Value
		case "bootstrap_port":
			req.port = f.Value
		}
	}
	switch {
	case len(req.room) == 0 || string(req.room) == "null":
	case req.room[0] == '[':
		elements, err := jsonscan.Elements(req.room)
		if err != nil {
			return req, err
		}
		for _, e := range elements {
			req.rooms = append(req.rooms, string(e))
		}
	default:
		req.rooms = []string{string(req.room)}
	}
	return req, nil
}

func contentType(stream bool) string {
	if stream {
		return "text/event-stream"
	}
	return "application/json"
}

// Shapes of answers, reduced to the fields that clients read.
var (
	pieces = [...]string{
		generate:    `{"text":%[2]q,"output_ids":[%[3]d],"meta_info":{"id":"r","finish_reason":null,"prompt_tokens":1,"completion_tokens":%[3]d}}`,
		chat:        `{"id":"r","object":"chat.completion.chunk","created":0,"model":%[1]q,"choices":[{"index":0,"delta":{"role":"assistant","content":%[2]q},"finish_reason":null}]}`,
		completions: `{"id":"r","object":"text_completion","created":0,"model":%[1]q,"choices":[{"index":0,"text":%[2]q,"finish_reason":null}]}`,
	}
	wholes = [...]string{
		generate:    `{"text":%[2]q,"output_ids":[%[3]d],"meta_info":{"id":"r","finish_reason":{"type":"stop"},"prompt_tokens":1,"completion_tokens":%[3]d}}`,
		chat:        `{"id":"r","object":"chat.completion","created":0,"model":%[1]q,"choices":[{"index":0,"message":{"role":"assistant","content":%[2]q},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":%[3]d,"total_tokens":%[3]d}}`,
		completions: `{"id":"r","object":"text_completion","created":0,"model":%[1]q,"choices":[{"index":0,"text":%[2]q,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":%[3]d,"total_tokens":%[3]d}}`,
	}
)

// send writes a success. With cut it leaves the answer unfinished.
func (a api) send(ctx context.Context, rw http.ResponseWriter, w *Worker, req request, t Timing, cut bool, e *entry) {
	rw.Header().Set("Content-Type", contentType(req.stream))
	flush := http.NewResponseController(rw).Flush
	e.update(func(l *Leg) { l.Status, l.Answered = 200, time.Now() })
	if !req.stream {
		if pause(ctx, time.Duration(t.Token)*time.Duration(t.Tokens-1), false) != nil {
			return
		}
		text := fmt.Sprintf(wholes[a], w.pool.cfg.Model, strings.Repeat("tok ", t.Tokens), t.Tokens)
		if a == generate && len(req.room) > 0 && req.room[0] == '[' {
			text = "[" + strings.TrimSuffix(strings.Repeat(text+",", len(req.rooms)), ",") + "]"
		}
		rw.Header().Set("Content-Length", strconv.Itoa(len(text)))
		if cut {
			text = text[:len(text)/2]
		}
		_, _ = io.WriteString(rw, text)
		e.update(func(l *Leg) { l.Tokens = t.Tokens })
		if cut {
			_ = flush()
		}
		return
	}
	for i := range t.Tokens {
		if i > 0 && pause(ctx, time.Duration(t.Token), false) != nil {
			return
		}
		if _, err := fmt.Fprintf(rw, "data: "+pieces[a]+"\n\n", w.pool.cfg.Model, "tok ", i+1); err != nil {
			return
		}
		_ = flush()
		e.update(func(l *Leg) { l.Tokens++ })
	}
	if !cut {
		_, _ = io.WriteString(rw, "data: [DONE]\n\n")
	}
}
