package worker

import (
	"context"
	"errors"
	"net/http"
	"os"
	"runtime"
	"strings"

	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/registry"
	"github.com/kvferry/kvferry/room"
)

// Paths of an instance's own routes.
const (
	EventsPath = "/kvferry/v1/events" // ?room=N: the kept events of a room, oldest first
	TablesPath = "/kvferry/v1/tables"
)

// Handler serves the instance's API.
func (w *Worker) Handler() http.Handler {
	m := http.NewServeMux()
	for path, kind := range map[string]api{"/v1/completions": completions, "/v1/chat/completions": chat, "/generate": generate} {
		m.HandleFunc("POST "+path, func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, kind) })
	}
	m.HandleFunc("GET /health", func(rw http.ResponseWriter, _ *http.Request) {
		if text := w.Trouble(); text != "" {
			writeError(rw, room.NewCause(room.Draining, w.cfg.Side, "", text))
			return
		}
		rw.WriteHeader(http.StatusOK)
	})
	m.HandleFunc("GET /v1/models", func(rw http.ResponseWriter, _ *http.Request) {
		writeJSON(rw, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": w.cfg.ModelName, "object": "model", "owned_by": "kvferry",
			"max_model_len": w.cfg.Model.Config().Context}}})
	})
	m.HandleFunc("GET "+registry.InstancePath, func(rw http.ResponseWriter, _ *http.Request) { writeJSON(rw, http.StatusOK, w.info()) })
	m.HandleFunc("GET "+TablesPath, func(rw http.ResponseWriter, _ *http.Request) { writeJSON(rw, http.StatusOK, w.Tables()) })
	m.HandleFunc("GET "+EventsPath, w.serveEvents)
	return m
}

func (w *Worker) serveEvents(rw http.ResponseWriter, r *http.Request) {
	id, err := room.ParseID(r.URL.Query().Get("room"))
	if err != nil {
		writeError(rw, refuse(http.StatusBadRequest, "room", "%v", err))
		return
	}
	list := w.events.Room(id)
	if list == nil {
		list = []event.Event{}
	}
	writeJSON(rw, http.StatusOK, list)
}

// serve answers one leg of a request.
func (w *Worker) serve(rw http.ResponseWriter, r *http.Request, kind api) {
	b, err := readBody(rw, r, w.cfg.MaxBody)
	var q *Request
	if err == nil {
		q, err = w.request(b, kind)
	}
	var j *job
	if err == nil {
		if w.cfg.Side == room.Prefill {
			q.MaxTokens, q.Stream, q.Stop = 1, false, nil // decode sees to the text
		}
		j, err = w.admit(q)
	}
	if err != nil {
		writeError(rw, err)
		return
	}
	stop := context.AfterFunc(r.Context(), func() {
		j.leave(room.NewCause(room.ClientGone, w.cfg.Side, "", ""))
	})
	defer stop()
	w.poke()
	w.answer(newAnswerer(rw, q, w.cfg.ModelName), j)
}

// leave ends a job from outside of the scheduler, which then drops it. A job that is already over is left alone.
func (j *job) leave(cause room.Cause) {
	j.end("", cause)
	j.w.poke()
}

// answer writes tokens as they come and the end.
func (w *Worker) answer(a *answerer, j *job) {
	t := &texter{dec: w.cfg.Model.Tokenizer().NewDecoder(), stops: j.Stop}
	for open := true; open; {
		select {
		case tok := <-j.out:
			open = w.take(a, j, t, tok)
		case <-j.over:
			open = false
		}
	}
	for rest := true; rest && !t.stopped; { // what the scheduler gave before the end
		select {
		case tok := <-j.out:
			w.take(a, j, t, tok)
		default:
			rest = false
		}
	}
	if t.stopped {
		j.end(finishStop, nil)
		w.poke()
	}
	if j.err != nil && !t.stopped {
		a.fail(j.err)
		return
	}
	finish := j.finish
	if t.stopped {
		finish = finishStop
	}
	_ = a.end(t.flush(), finish) // the client may be gone
}

// take writes one token; false: nothing more is wanted.
func (w *Worker) take(a *answerer, j *job, t *texter, tok token) bool {
	if t.stopped {
		return false
	}
	text := t.next(tok.id)
	if err := a.add(text, &tok.digest); err != nil {
		j.leave(room.NewCause(room.ClientGone, w.cfg.Side, "", err.Error()))
		return false
	}
	return !t.stopped
}

// texter turns tokens into text and holds back what may be the beginning of a stop text.
type texter struct {
	dec interface {
		Next(int32) string
		Flush() string
	}
	stops   []string
	held    string
	stopped bool
}

func (t *texter) next(id int32) string {
	t.held += t.dec.Next(id)
	keep := 0
	for _, s := range t.stops {
		if i := strings.Index(t.held, s); i >= 0 {
			t.held, t.stopped = t.held[:i], true
		}
	}
	if !t.stopped {
		for _, s := range t.stops {
			for n := min(len(s)-1, len(t.held)); n > keep; n-- {
				if strings.HasPrefix(s, t.held[len(t.held)-n:]) {
					keep = n
				}
			}
		}
	}
	text := t.held[:len(t.held)-keep]
	t.held = t.held[len(t.held)-keep:]
	return text
}

func (t *texter) flush() string {
	if t.stopped {
		return ""
	}
	return t.held + t.dec.Flush()
}

// causeOf types an error of the hand-off.
func causeOf(err error, side room.Side) room.Cause {
	var c room.Cause
	switch {
	case errors.As(err, &c):
		return c
	case errors.Is(err, node.ErrDuplicate):
		return room.NewCause(room.Superseded, side, "", err.Error())
	case errors.Is(err, node.ErrNoGeneration), errors.Is(err, node.ErrCrowded):
		return room.NewCause(room.Exhausted, side, "", err.Error())
	}
	return room.NewCause(room.Internal, side, "", err.Error())
}

// processCounts are the process's goroutines and open descriptors.
func processCounts() (goroutines, descriptors int) {
	if list, err := os.ReadDir("/proc/self/fd"); err == nil {
		descriptors = len(list) - 1 // the directory itself
	}
	return runtime.NumGoroutine(), descriptors
}
