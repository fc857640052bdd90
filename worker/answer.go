package worker

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/kvferry/kvferry/room"
)

// CauseHeader carries the label of a failed request's cause.
const CauseHeader = "X-Kvferry-Cause"

// errorBody is the body of a failed request, in OpenAI's shape, with the cause beside.
type errorBody struct {
	Error struct {
		Message string     `json:"message"`
		Type    string     `json:"type"`
		Code    string     `json:"code"`
		Param   *string    `json:"param"`
		Cause   *causeJSON `json:"cause"`
	} `json:"error"`
}

type causeJSON struct {
	Code string `json:"code"`
	Side string `json:"side"`
	Peer string `json:"peer,omitempty"`
	Text string `json:"text,omitempty"`
}

// failure is an error as status and body. What is no cause of ours is an internal one.
func failure(err error) (int, errorBody, room.Code) {
	var b errorBody
	var cause room.Cause
	if !errors.As(err, &cause) {
		cause = room.NewCause(room.Internal, 0, "", err.Error())
	}
	status := cause.Code.HTTPStatus()
	var r *refusal
	b.Error.Message, b.Error.Type = cause.Error(), "server_error"
	if errors.As(err, &r) {
		status, b.Error.Message = r.status, cause.Text
		if r.param != "" {
			b.Error.Param = &r.param
		}
	}
	if status < 500 {
		b.Error.Type = "invalid_request_error"
	}
	b.Error.Code = cause.Code.String()
	b.Error.Cause = &causeJSON{cause.Code.String(), cause.Side.String(), cause.Peer, cause.Text}
	return status, b, cause.Code
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}

func writeError(w http.ResponseWriter, err error) {
	status, body, code := failure(err)
	w.Header().Set(CauseHeader, code.String())
	writeJSON(w, status, body)
}

// finish reasons.
const (
	finishStop   = "stop"
	finishLength = "length"
)

// answerer writes the answer to one request as it comes.
type answerer struct {
	w       http.ResponseWriter
	q       *Request
	model   string
	id      string
	created int64
	began   bool // the stream's first byte has left

	text    strings.Builder // whole text, where it is not streamed or the API repeats it
	tokens  int
	digests []string
}

func newAnswerer(w http.ResponseWriter, q *Request, model string) *answerer {
	prefix := map[api]string{completions: "cmpl-", chat: "chatcmpl-", generate: ""}[q.api]
	return &answerer{w: w, q: q, model: model, id: prefix + q.Room.String(), created: time.Now().Unix()}
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

type ours struct {
	Room    room.ID  `json:"room"`
	Digests []string `json:"logits_sha256,omitempty"`
}

type choice struct {
	Index    int      `json:"index"`
	Text     *string  `json:"text,omitempty"`
	Message  *message `json:"message,omitempty"`
	Delta    *message `json:"delta,omitempty"`
	Logprobs *int     `json:"logprobs"`
	Finish   *string  `json:"finish_reason"`
}

type message struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type openAI struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
	Ours    *ours    `json:"kvferry,omitempty"`
}

type finishJSON struct {
	Type   string `json:"type"`
	Length int    `json:"length,omitempty"`
}

type sglang struct {
	Text string `json:"text"`
	Meta struct {
		ID         string      `json:"id"`
		Finish     *finishJSON `json:"finish_reason"`
		Prompt     int         `json:"prompt_tokens"`
		Completion int         `json:"completion_tokens"`
	} `json:"meta_info"`
	Ours *ours `json:"kvferry,omitempty"`
}

// add takes a token's text; in a stream it leaves at once.
func (a *answerer) add(text string, digest *[32]byte) error {
	a.tokens++
	if digest != nil && a.q.Digest {
		a.digests = append(a.digests, hex.EncodeToString(digest[:]))
	}
	if !a.q.Stream || a.q.api == generate {
		a.text.WriteString(text)
	}
	if !a.q.Stream || text == "" {
		return nil
	}
	return a.event(a.part(text, ""))
}

// end closes the answer. text is what was held back.
func (a *answerer) end(text, finish string) error {
	if !a.q.Stream || a.q.api == generate {
		a.text.WriteString(text)
	}
	if !a.q.Stream {
		writeJSON(a.w, http.StatusOK, a.whole(finish))
		return nil
	}
	last := a.part(text, finish)
	if err := a.event(last); err != nil {
		return err
	}
	return a.raw("data: [DONE]\n\n")
}

// fail ends the request with an error: as a status before a stream has begun, else as an event, without [DONE].
func (a *answerer) fail(err error) {
	if !a.began {
		writeError(a.w, err)
		return
	}
	_, body, _ := failure(err)
	_ = a.event(body) // the client may be gone
}

func (a *answerer) usage() *usage {
	return &usage{len(a.q.Prompt), a.tokens, len(a.q.Prompt) + a.tokens}
}

func (a *answerer) ours() *ours { return &ours{a.q.Room, a.digests} }

func (a *answerer) whole(finish string) any {
	text := a.text.String()
	if a.q.api == generate {
		return a.sglang(finish)
	}
	c := choice{Finish: &finish}
	r := openAI{ID: a.id, Object: "text_completion", Created: a.created, Model: a.model, Usage: a.usage(), Ours: a.ours()}
	if a.q.api == chat {
		r.Object = "chat.completion"
		c.Message = &message{"assistant", &text}
	} else {
		c.Text = &text
	}
	r.Choices = []choice{c}
	return r
}

func (a *answerer) sglang(finish string) any {
	var r sglang
	r.Text, r.Meta.ID, r.Meta.Prompt, r.Meta.Completion = a.text.String(), a.id, len(a.q.Prompt), a.tokens
	if finish != "" {
		r.Meta.Finish = &finishJSON{Type: finish}
		if finish == finishLength {
			r.Meta.Finish.Length = a.tokens
		}
		r.Ours = a.ours()
	}
	return r
}

// part is one event of a stream; finish is empty but for the last.
func (a *answerer) part(text, finish string) any {
	if a.q.api == generate {
		return a.sglang(finish)
	}
	c := choice{}
	r := openAI{ID: a.id, Object: "text_completion", Created: a.created, Model: a.model}
	if finish != "" {
		c.Finish = &finish
		r.Usage, r.Ours = a.usage(), a.ours()
	}
	if a.q.api == chat {
		r.Object = "chat.completion.chunk"
		c.Delta = &message{Content: &text}
		if !a.began {
			c.Delta.Role = "assistant"
		}
	} else {
		c.Text = &text
	}
	r.Choices = []choice{c}
	return r
}

func (a *answerer) event(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.raw("data: " + string(b) + "\n\n")
}

func (a *answerer) raw(s string) error {
	if !a.began {
		a.began = true
		h := a.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		a.w.WriteHeader(http.StatusOK)
	}
	if _, err := a.w.Write([]byte(s)); err != nil {
		return fmt.Errorf("client: %w", err)
	}
	return http.NewResponseController(a.w).Flush()
}
