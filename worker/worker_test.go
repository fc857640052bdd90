package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/model"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bundled = func() *llm.Model {
	m, err := model.Bundled()
	if err != nil {
		panic(err)
	}
	return m
}()

// instance is a worker that serves.
type instance struct {
	*worker.Worker
	api, boot *httptest.Server
	stop      context.CancelFunc
	done      chan error
}

func start(t *testing.T, cfg worker.Config) *instance {
	t.Helper()
	cfg.Model, cfg.ModelName = bundled, model.Name
	w, err := worker.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	x := &instance{Worker: w, api: httptest.NewServer(w.Handler()), boot: httptest.NewServer(w.Bootstrap().Handler()), done: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.Background())
	x.stop = stop
	go func() { x.done <- w.Run(ctx) }()
	t.Cleanup(func() {
		x.stop()
		if err := <-x.done; err != nil {
			t.Error(err)
		}
		x.api.Close()
		x.boot.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return x
}

func (x *instance) post(ctx context.Context, path, body string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.api.URL+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read to the end
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

// meet is the members by which two legs meet.
func meet(p *instance, id room.ID) string {
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(p.boot.URL, "http://"))
	return fmt.Sprintf(`"bootstrap_host":%q,"bootstrap_port":%s,"bootstrap_room":%d`, host, port, id)
}

type answer struct {
	Choices []struct {
		Text   string `json:"text"`
		Finish string `json:"finish_reason"`
	} `json:"choices"`
	Ours struct {
		Digests []string `json:"logits_sha256"`
	} `json:"kvferry"`
	Error *struct {
		Message string `json:"message"`
		Cause   struct {
			Code string `json:"code"`
		} `json:"cause"`
	} `json:"error"`
}

// both sends a request to both legs and returns decode's answer.
func both(t *testing.T, p, d *instance, id room.ID, members string) (int, answer) {
	body := "{" + members + "," + meet(p, id) + "}"
	var wg sync.WaitGroup
	wg.Go(func() {
		if code, b, err := p.post(t.Context(), "/v1/completions", body); err != nil || code != 200 {
			t.Errorf("prefill leg of room %d: %d %s %v", id, code, b, err)
		}
	})
	code, b, err := d.post(t.Context(), "/v1/completions", body)
	wg.Wait()
	var a answer
	if err != nil || json.Unmarshal(b, &a) != nil {
		t.Errorf("decode leg of room %d: %d %s %v", id, code, b, err)
	}
	return code, a
}

const prompt = "Package http provides HTTP client and server implementations. Get, Head, Post, and PostForm make HTTP (or HTTPS) requests. The caller must close"

// reference is the text and digests of a single process.
func reference(t *testing.T, text string, n int) (string, []string) {
	c := bundled.Config()
	geo := llm.Geometry{TP: 1, PP: 1, PageSize: 16}
	var regions [][]byte
	for range 2 * c.Layers {
		regions = append(regions, make([]byte, 32*geo.ItemLen(c)))
	}
	in, err := llm.NewInstance(bundled, geo, [][][]byte{regions})
	if err != nil {
		t.Fatal(err)
	}
	table := make([]int32, 32)
	for i := range table {
		table[i] = int32(i)
	}
	ids := bundled.Tokenizer().Encode(text)
	from := len(ids)
	digests := worker.Digests(t.Context(), in, &ids, [][]int32{table}, n)
	return bundled.Tokenizer().Decode(ids[from:]), digests
}

// Many more requests than pages: all finish, and everything returns to where it was.
func manyRequests(t *testing.T, n int, ps, ds []*instance) {
	var tables []worker.Tables
	all := append(append([]*instance{}, ps...), ds...)
	for _, x := range all {
		tables = append(tables, x.Tables())
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			code, a := both(t, ps[i%len(ps)], ds[(i/2)%len(ds)], room.ID(1000+i), `"prompt":"Reader is the interface that wraps the basic Read method.","max_tokens":16,"temperature":0,"ignore_eos":true`)
			if code != 200 || a.Error != nil || a.Choices[0].Finish != "length" {
				t.Errorf("request %d: %d %+v", i, code, a)
			}
		})
	}
	wg.Wait()
	for i, x := range all {
		settled(t, x, tables[i])
	}
}

func TestMoreRequestsThanPages(t *testing.T) {
	p, d := start(t, worker.Config{Side: room.Prefill, Pages: 16}), start(t, worker.Config{Side: room.Decode, Pages: 6})
	manyRequests(t, 12, []*instance{p}, []*instance{d})
}

func settled(t *testing.T, x *instance, want worker.Tables) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		got := x.Tables()
		bad := got.Jobs != 0 || got.SlotsFree != want.SlotsFree
		for i, r := range got.Ranks {
			bad = bad || r.Rooms+r.Halves+r.Writes+r.Unserved+r.Quarantined+r.UnprovenGenerations != 0 || r.PagesFree != want.Ranks[i].PagesFree
		}
		if !bad {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("tables do not return: %+v, want %+v", got, want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestClientGone(t *testing.T) {
	p, d := start(t, worker.Config{Side: room.Prefill, Chunk: 8}), start(t, worker.Config{Side: room.Decode})
	pt, dt := p.Tables(), d.Tables()
	for i, who := range []string{"decode alone", "prefill alone", "decode in mid-stream"} {
		t.Run(who, func(t *testing.T) {
			id := room.ID(5 + i) // a number that was given up is refused to who comes late
			body := fmt.Sprintf(`{"prompt":%q,"max_tokens":300,"ignore_eos":true,"stream":true,%s}`, prompt, meet(p, id))
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			if who != "decode alone" {
				wg.Go(func() { _, _, _ = p.post(ctx, "/v1/completions", body) })
			}
			if who != "prefill alone" {
				wg.Go(func() { _, _, _ = d.post(ctx, "/v1/completions", body) })
			}
			if who == "decode in mid-stream" {
				for d.Tables().Active == 0 || len(d.Events().Room(id)) < 8 {
					time.Sleep(time.Millisecond)
				}
			} else {
				for p.Tables().Jobs+d.Tables().Jobs == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			cancel()
			wg.Wait()
			settled(t, p, pt)
			settled(t, d, dt)
		})
	}
	if code, a := both(t, p, d, 99, `"prompt":"Reader","max_tokens":2`); code != 200 {
		t.Errorf("a request afterwards: %d %+v", code, a)
	}
}

func TestStreamsAndShapes(t *testing.T) {
	p, d := start(t, worker.Config{Side: room.Prefill}), start(t, worker.Config{Side: room.Decode})
	for i, c := range []struct{ path, body, want string }{
		{"/v1/completions", `"prompt":"Reader is","max_tokens":3,"temperature":0,"ignore_eos":true,"stream":true`, "data: [DONE]\n\n"},
		{"/v1/completions", `"prompt":["Reader is"],"max_tokens":3,"temperature":0`, `"object":"text_completion"`},
		{"/v1/chat/completions", `"messages":[{"role":"user","content":"Reader is"}],"max_tokens":3,"stream":true`, `"object":"chat.completion.chunk"`},
		{"/v1/chat/completions", `"messages":[{"role":"user","content":[{"type":"text","text":"Reader is"}]}],"max_tokens":3`, `"role":"assistant"`},
		{"/generate", `"text":"Reader is","sampling_params":{"max_new_tokens":3,"temperature":0,"ignore_eos":true}`, `"completion_tokens":3`},
		{"/generate", `"input_ids":[5,6,7],"sampling_params":{"max_new_tokens":3},"stream":true`, "data: [DONE]\n\n"},
		{"/v1/completions", `"prompt":"Reader is","max_tokens":40,"temperature":0,"ignore_eos":true,"stop":["e"]`, `"finish_reason":"stop"`},
	} {
		body := "{" + c.body + "," + meet(p, room.ID(500+i)) + "}"
		var wg sync.WaitGroup
		wg.Go(func() {
			if code, b, err := p.post(t.Context(), c.path, body); err != nil || code != 200 {
				t.Errorf("%s prefill: %d %s %v", c.path, code, b, err)
			}
		})
		code, b, err := d.post(t.Context(), c.path, body)
		wg.Wait()
		if err != nil || code != 200 || !bytes.Contains(b, []byte(c.want)) {
			t.Errorf("%s %s: %d %s %v, want %s in it", c.path, c.body, code, b, err, c.want)
		}
	}
}

func TestBadInput(t *testing.T) {
	d := start(t, worker.Config{Side: room.Decode, MaxBody: 1 << 16})
	m := `"bootstrap_host":"127.0.0.1","bootstrap_port":1,"bootstrap_room":5`
	for _, c := range []struct {
		path, body string
		code       int
		says       string
	}{
		{"/v1/completions", `{"prompt": x}`, 400, "at byte 12"},
		{"/v1/completions", `{`, 400, "malformed JSON"},
		{"/v1/completions", `[]`, 400, "want"},
		{"/v1/completions", `{"prompt":"x"}`, 400, "bootstrap_host"},
		{"/v1/completions", `{"prompt":"x",` + strings.Replace(m, ":5", ":1.5", 1) + `}`, 400, "bootstrap_room"},
		{"/v1/completions", `{"prompt":"x",` + strings.Replace(m, ":5", ":9223372036854775808", 1) + `}`, 400, "bootstrap_room"},
		{"/v1/completions", `{"prompt":"x",` + strings.Replace(m, ":5", ":[5,6]", 1) + `}`, 400, "list"},
		{"/v1/completions", `{"prompt":"x","model":"gpt-5",` + m + `}`, 404, "gpt-5"},
		{"/v1/completions", `{"prompt":"` + strings.Repeat("ab ", 2000) + `",` + m + `}`, 400, "at most 511 fit"},
		{"/v1/completions", `{"prompt":"` + strings.Repeat("a", 1<<16) + `",` + m + `}`, 413, "65536"},
		{"/v1/completions", `{"prompt":"x","max_tokens":0,` + m + `}`, 400, "max_tokens is 0"},
		{"/v1/completions", `{"prompt":"x","temperature":-1,` + m + `}`, 400, "temperature is -1"},
		{"/v1/completions", `{"prompt":[99999],` + m + `}`, 400, "99999"},
		{"/v1/completions", `{"prompt":"x","stop":7,` + m + `}`, 400, "stop"},
		{"/v1/chat/completions", `{"messages":[],` + m + `}`, 400, "messages"},
		{"/generate", `{` + m + `}`, 400, "input_ids"},
	} {
		code, b, err := d.post(t.Context(), c.path, c.body)
		var a answer
		if err != nil || json.Unmarshal(b, &a) != nil || a.Error == nil || code != c.code || !strings.Contains(a.Error.Message, c.says) {
			t.Errorf("%.80s: %d %s %v, want %d that says %q", c.body, code, b, err, c.code, c.says)
		}
	}
	// Nobody serves the other leg: the request fails with the cause, at once.
	code, b, err := d.post(t.Context(), "/v1/completions", `{"prompt":"x",`+m+`}`)
	if err != nil || code != 503 || !strings.Contains(string(b), `"unavailable"`) {
		t.Errorf("%d %s %v", code, b, err)
	}
}
