package registry

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

const (
	textType = "text/plain; charset=utf-8"
	jsonType = "application/json; charset=utf-8"
)

// NewServer makes an HTTP server for a handler of this package, with time and size limits: 5 s for a header of at most 16 KiB, 15 s for a
// whole request, 60 s for an answer (more than the longest wait of a watcher), 60 s of idling. The caller serves, and closes it.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 2 * maxWait, IdleTimeout: 60 * time.Second, MaxHeaderBytes: 16 << 10}
}

// readBody reads a request's body of at most limit bytes; beyond it the connection is closed.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	b, err := readAll(http.MaxBytesReader(w, r.Body, limit), limit)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, fmt.Errorf("%w of %d bytes", ErrTooLarge, limit)
	case err != nil && !errors.Is(err, ErrInvalid):
		return nil, fmt.Errorf("%w: body: %w", ErrInvalid, err)
	}
	return b, err
}

func writeText(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", textType)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(s)) // the client may be gone
}

func writeJSON(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", jsonType)
	_, _ = w.Write(body) // the client may be gone
}

func writeError(w http.ResponseWriter, err error) { writeText(w, statusOf(err), err.Error()) }
