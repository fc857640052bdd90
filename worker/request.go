package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/room"
)

// api is the shape in which a request came and its answer goes.
type api uint8

const (
	completions api = iota
	chat
	generate
)

// Request is one generation, whatever the API.
type Request struct {
	api       api
	Prompt    []int32 // tokens
	MaxTokens int
	Sampler   llm.Sampler
	Stop      []string
	IgnoreEOS bool
	Stream    bool
	Digest    bool // the answer carries a SHA-256 of each token's logits

	Room      room.ID
	Bootstrap string // host:port of the prefill instance
	DPRank    int    // -1: not told
}

// refusal is an error with an HTTP status.
type refusal struct {
	status int
	cause  room.Cause
	param  string
}

func (e *refusal) Error() string { return e.cause.Error() }
func (e *refusal) Unwrap() error { return e.cause }

func refuse(status int, param, format string, args ...any) error {
	return &refusal{status, room.Causef(room.Invalid, 0, "", format, args...), param}
}

// body is the union of the three APIs' requests; members that we do not use are ignored.
type body struct {
	Model    *string         `json:"model"`
	Prompt   json.RawMessage `json:"prompt"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Text     json.RawMessage `json:"text"`
	InputIDs json.RawMessage `json:"input_ids"`
	Sampling *params         `json:"sampling_params"`
	params
	Stream    bool            `json:"stream"`
	Digest    bool            `json:"return_logits_digest"`
	Bootstrap struct{}        `json:"-"`
	Host      json.RawMessage `json:"bootstrap_host"`
	Port      json.RawMessage `json:"bootstrap_port"`
	Room      json.RawMessage `json:"bootstrap_room"`
	DPRank    *int            `json:"disagg_prefill_dp_rank"`
}

type params struct {
	MaxTokens     *int            `json:"max_tokens"`
	MaxCompletion *int            `json:"max_completion_tokens"`
	MaxNew        *int            `json:"max_new_tokens"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	TopK          *int            `json:"top_k"`
	Seed          *int64          `json:"seed"`
	SamplingSeed  *int64          `json:"sampling_seed"`
	Stop          json.RawMessage `json:"stop"`
	IgnoreEOS     bool            `json:"ignore_eos"`
}

// readBody reads a bounded body and decodes it; where it is no JSON, the error says at which byte.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) (*body, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return nil, refuse(http.StatusRequestEntityTooLarge, "", "the body is longer than %d bytes", limit)
	case err != nil:
		return nil, refuse(http.StatusBadRequest, "", "the body could not be read: %v", err)
	}
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		var syntax *json.SyntaxError
		var typ *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			return nil, refuse(http.StatusBadRequest, "", "malformed JSON at byte %d: %v", syntax.Offset, err)
		case errors.As(err, &typ):
			return nil, refuse(http.StatusBadRequest, typ.Field, "field %q at byte %d is a %s, want %s", typ.Field, typ.Offset, typ.Value, typ.Type)
		}
		return nil, refuse(http.StatusBadRequest, "", "malformed JSON: %v", err)
	}
	return &b, nil
}

// request makes a Request of a body.
func (w *Worker) request(b *body, kind api) (*Request, error) {
	if b.Model != nil && *b.Model != w.cfg.ModelName && *b.Model != "" && *b.Model != "default" {
		return nil, refuse(http.StatusNotFound, "model", "model %q is not served here, want %q", *b.Model, w.cfg.ModelName)
	}
	q := &Request{api: kind, Stream: b.Stream, Digest: b.Digest, DPRank: -1}
	if err := q.where(b); err != nil {
		return nil, err
	}
	var err error
	if q.Prompt, err = w.prompt(b, kind); err != nil {
		return nil, err
	}
	p := b.params
	if kind == generate && b.Sampling != nil {
		p = *b.Sampling
	}
	return q, q.sampling(p, w.cfg.Model.Config().Context)
}

// where reads the three fields by which the two legs meet.
func (q *Request) where(b *body) error {
	for _, p := range []struct {
		name string
		raw  *json.RawMessage
	}{{"bootstrap_host", &b.Host}, {"bootstrap_port", &b.Port}, {"bootstrap_room", &b.Room}} {
		var list []json.RawMessage
		if json.Unmarshal(*p.raw, &list) == nil && len(list) == 1 { // a batch of one
			*p.raw = list[0]
		}
		f := struct {
			name string
			raw  json.RawMessage
		}{p.name, *p.raw}
		if len(f.raw) == 0 || string(f.raw) == "null" {
			return refuse(http.StatusBadRequest, f.name, "field %q is missing: this worker serves one leg of a request, send it through the gateway", f.name)
		}
		if f.raw[0] == '[' {
			return refuse(http.StatusBadRequest, f.name, "field %q is a list: batches are not served, send one request each", f.name)
		}
	}
	if err := json.Unmarshal(b.Room, &q.Room); err != nil {
		return refuse(http.StatusBadRequest, "bootstrap_room", "field \"bootstrap_room\" is %.40s: %v", b.Room, err)
	}
	var host string
	var port int
	if json.Unmarshal(b.Host, &host) != nil || host == "" || json.Unmarshal(b.Port, &port) != nil || port < 1 || port > 65535 {
		return refuse(http.StatusBadRequest, "bootstrap_host", "bootstrap_host %.80s and bootstrap_port %.20s are no address", b.Host, b.Port)
	}
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	q.Bootstrap = fmt.Sprintf("%s:%d", host, port)
	if b.DPRank != nil {
		q.DPRank = *b.DPRank
	}
	return nil
}

// prompt tokenises what the request asks to go on from.
func (w *Worker) prompt(b *body, kind api) ([]int32, error) {
	tok := w.cfg.Model.Tokenizer()
	field, raw := "prompt", b.Prompt
	switch kind {
	case chat:
		if len(b.Messages) == 0 {
			return nil, refuse(http.StatusBadRequest, "messages", "field \"messages\" is missing or empty")
		}
		var ms []llm.Message
		for i, m := range b.Messages {
			text, err := content(m.Content)
			if err != nil {
				return nil, refuse(http.StatusBadRequest, "messages", "message %d: %v", i, err)
			}
			ms = append(ms, llm.Message{Role: m.Role, Content: text})
		}
		return w.fits(tok.EncodeChat(ms))
	case generate:
		field, raw = "text", b.Text
		if len(raw) == 0 {
			field, raw = "input_ids", b.InputIDs
		}
	case completions:
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil, refuse(http.StatusBadRequest, field, "field %q is missing", field)
	}
	var text string
	var texts []string
	var ids []int32
	switch {
	case json.Unmarshal(raw, &text) == nil:
		ids = tok.Encode(text)
	case json.Unmarshal(raw, &texts) == nil && len(texts) == 1:
		ids = tok.Encode(texts[0])
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		for _, id := range ids {
			if id < 0 || int(id) >= w.cfg.Model.Config().Vocab {
				return nil, refuse(http.StatusBadRequest, field, "token %d, the vocabulary has %d", id, w.cfg.Model.Config().Vocab)
			}
		}
	default:
		return nil, refuse(http.StatusBadRequest, field, "field %q is %.40s, want one text or a list of tokens", field, raw)
	}
	return w.fits(ids)
}

// content is a chat message's text, whole or in parts.
func content(raw json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", fmt.Errorf("content is %.40s, want text", raw)
	}
	for _, p := range parts {
		if p.Type != "text" {
			return "", fmt.Errorf("content of type %q, want \"text\"", p.Type)
		}
		text += p.Text
	}
	return text, nil
}

func (w *Worker) fits(ids []int32) ([]int32, error) {
	limit := w.cfg.Model.Config().Context - 1
	if pool := w.cfg.Pages * w.cfg.Geometry.PageSize; pool < limit {
		limit = pool - 1
	}
	switch {
	case len(ids) == 0:
		return nil, refuse(http.StatusBadRequest, "prompt", "the prompt is empty")
	case len(ids) > limit:
		return nil, refuse(http.StatusBadRequest, "prompt", "the prompt has %d tokens, at most %d fit", len(ids), limit)
	}
	return ids, nil
}

// sampling reads what decides the tokens. Without a seed the room number is one, so that both legs have the same.
func (q *Request) sampling(p params, context int) error {
	q.MaxTokens = 16
	if q.api == generate {
		q.MaxTokens = 128
	}
	for _, n := range []*int{p.MaxTokens, p.MaxCompletion, p.MaxNew} {
		if n != nil {
			q.MaxTokens = *n
		}
	}
	if q.MaxTokens < 1 {
		return refuse(http.StatusBadRequest, "max_tokens", "max_tokens is %d, want at least 1", q.MaxTokens)
	}
	q.MaxTokens = min(q.MaxTokens, context-len(q.Prompt))
	q.Sampler = llm.Sampler{Seed: uint64(q.Room), Temperature: 1}
	if p.Temperature != nil {
		if *p.Temperature < 0 || *p.Temperature > 100 {
			return refuse(http.StatusBadRequest, "temperature", "temperature is %v, want 0 to 100", *p.Temperature)
		}
		q.Sampler.Temperature = float32(*p.Temperature)
	}
	if p.TopP != nil {
		if *p.TopP < 0 || *p.TopP > 1 {
			return refuse(http.StatusBadRequest, "top_p", "top_p is %v, want 0 to 1", *p.TopP)
		}
		q.Sampler.TopP = float32(*p.TopP)
	}
	if p.TopK != nil && *p.TopK > 0 {
		q.Sampler.TopK = *p.TopK
	}
	for _, s := range []*int64{p.SamplingSeed, p.Seed} {
		if s != nil {
			q.Sampler.Seed = uint64(*s)
		}
	}
	q.IgnoreEOS = p.IgnoreEOS
	if len(p.Stop) == 0 || string(p.Stop) == "null" {
		return nil
	}
	var one string
	if json.Unmarshal(p.Stop, &one) == nil {
		q.Stop = []string{one}
	} else if json.Unmarshal(p.Stop, &q.Stop) != nil {
		return refuse(http.StatusBadRequest, "stop", "field \"stop\" is %.40s, want text or a list of texts", p.Stop)
	}
	const maxStops = 16
	if len(q.Stop) > maxStops {
		return refuse(http.StatusBadRequest, "stop", "%d stop texts, want at most %d", len(q.Stop), maxStops)
	}
	for _, s := range q.Stop {
		if s == "" {
			return refuse(http.StatusBadRequest, "stop", "an empty stop text")
		}
	}
	return nil
}
