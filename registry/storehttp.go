package registry

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kvferry/kvferry/room"
)

// InstancesPath is where a Store is served:
//
//	PUT    InstancesPath/ID                        an Instance; answers a Lease
//	DELETE InstancesPath/ID
//	GET    InstancesPath?registry=&after=&wait_ms= a Snapshot, at the latest after wait_ms
//
// Refusals are text: 400 invalid, 401 token, 404 unknown, 409 superseded, 413 too large, 429 full, 503 closed.
const InstancesPath = "/registry/v1/instances"

// Bounds of the served store.
const (
	maxInstanceBody = 64 << 10 // bytes
	maxWait         = 30 * time.Second
	maxWatchers     = 1024 // that wait at one time
)

// Handler serves the store. Whoever writes must send token as a bearer token, unless it is empty; reading is free. It belongs on a server
// with time limits, such as NewServer's.
func (s *Store) Handler(token string) http.Handler {
	waiting := make(chan struct{}, maxWatchers)
	m := http.NewServeMux()
	m.HandleFunc("PUT "+InstancesPath+"/{id}", authorized(token, s.put))
	m.HandleFunc("DELETE "+InstancesPath+"/{id}", authorized(token, s.delete))
	m.HandleFunc("GET "+InstancesPath, func(w http.ResponseWriter, r *http.Request) { s.get(w, r, waiting) })
	return m
}

// authorized lets requests with the token pass. The digests are compared, in constant time, so that not even the token's length shows.
func authorized(token string, h http.HandlerFunc) http.HandlerFunc {
	want := sha256.Sum256([]byte(token))
	return func(w http.ResponseWriter, r *http.Request) {
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(given))
		if token != "" && (!strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeError(w, ErrDenied)
			return
		}
		h(w, r)
	}
}

func (s *Store) put(w http.ResponseWriter, r *http.Request) {
	id, err := pathID(r)
	var body []byte
	if err == nil {
		body, err = readBody(w, r, maxInstanceBody)
	}
	var i Instance
	if err == nil {
		i, err = ParseInstance(body)
	}
	if err == nil && i.ID != id {
		err = fmt.Errorf("%w: the path names instance %s, the body %s", ErrInvalid, id, i.ID)
	}
	var l Lease
	if err == nil {
		l, err = s.Register(i)
	}
	answer(w, l, err)
}

func (s *Store) delete(w http.ResponseWriter, r *http.Request) {
	id, err := pathID(r)
	if err == nil {
		err = s.Leave(id)
	}
	answer(w, struct{}{}, err)
}

func pathID(r *http.Request) (room.InstanceID, error) {
	id, err := room.ParseInstanceID(r.PathValue("id"))
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return id, err
}

func (s *Store) get(w http.ResponseWriter, r *http.Request, waiting chan struct{}) {
	life, after, wait, err := parseWait(r.URL.Query())
	if err != nil {
		writeError(w, err)
		return
	}
	select {
	case waiting <- struct{}{}:
		defer func() { <-waiting }()
	default:
		writeError(w, fmt.Errorf("%w: %d watchers wait", ErrFull, maxWatchers))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	v, err := s.Wait(ctx, life, after)
	if errors.Is(err, context.DeadlineExceeded) {
		v, err = s.Snapshot(), nil
	}
	answer(w, v, err)
}

// parseWait reads a watcher's question; what is missing is zero.
func parseWait(q url.Values) (life room.InstanceID, after uint64, wait time.Duration, err error) {
	if v := q.Get("registry"); v != "" {
		if life, err = room.ParseInstanceID(v); err != nil {
			return life, 0, 0, fmt.Errorf("%w: registry: %w", ErrInvalid, err)
		}
	}
	if v := q.Get("after"); v != "" {
		if after, err = strconv.ParseUint(v, 10, 64); err != nil {
			return life, 0, 0, fmt.Errorf("%w: after is %s, want a revision", ErrInvalid, shown([]byte(v)))
		}
	}
	if v := q.Get("wait_ms"); v != "" {
		ms, err := strconv.ParseUint(v, 10, 31)
		if err != nil {
			return life, 0, 0, fmt.Errorf("%w: wait_ms is %s, want milliseconds", ErrInvalid, shown([]byte(v)))
		}
		wait = min(time.Duration(ms)*time.Millisecond, maxWait)
	}
	return life, after, wait, nil
}

func answer(w http.ResponseWriter, v any, err error) {
	if err == nil {
		var body []byte
		if body, err = json.Marshal(v); err == nil {
			writeJSON(w, body)
			return
		}
	}
	writeError(w, err)
}
