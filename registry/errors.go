package registry

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Errors of this package, by what their receiver can do. A pair that can't be paired is a *kvlayout.IncompatibleError instead.
var (
	ErrInvalid     = errors.New("invalid")                               // fix the request, or the peer's answer is nonsense
	ErrTooLarge    = fmt.Errorf("%w: larger than its limit", ErrInvalid) // a body, an answer or a list
	ErrDenied      = errors.New("the token is missing or wrong")
	ErrNotReady    = errors.New("not ready yet") // ask again
	ErrNotFound    = errors.New("not found")
	ErrSuperseded  = errors.New("another incarnation is registered at this address") // leave
	ErrFull        = errors.New("the registry is full")                              // back off
	ErrUnavailable = errors.New("not reachable")                                     // ask again, or ask another
)

// statuses is the one table of HTTP statuses: what a server of this package answers for an error, and what a client makes of it. The first
// row that fits counts.
var statuses = []struct {
	err    error
	status int
}{
	{ErrTooLarge, http.StatusRequestEntityTooLarge},
	{ErrInvalid, http.StatusBadRequest},
	{ErrDenied, http.StatusUnauthorized},
	{ErrNotFound, http.StatusNotFound},
	{ErrSuperseded, http.StatusConflict},
	{ErrFull, http.StatusTooManyRequests},
	{ErrNotReady, http.StatusServiceUnavailable},
	{ErrUnavailable, http.StatusServiceUnavailable},
}

func statusOf(err error) int {
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return s.status
		}
	}
	return http.StatusInternalServerError
}

// errorOf is what a status other than 200 means to the one who asked.
func errorOf(status int) error {
	for _, s := range statuses {
		if s.status == status {
			return s.err
		}
	}
	if status >= http.StatusInternalServerError {
		return ErrUnavailable
	}
	return ErrInvalid
}

// permanent reports that asking again can't help.
func permanent(err error) bool {
	return errors.Is(err, ErrInvalid) || errors.Is(err, ErrDenied) || errors.Is(err, ErrSuperseded)
}

// readAll reads a body of at most limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w of %d bytes", ErrTooLarge, limit)
	}
	return b, nil
}
