package kvlayout

import (
	"errors"
	"fmt"
)

// What can be wrong.
var (
	// ErrIncompatible: the two sides can't be paired, whatever the room. The error is an *IncompatibleError.
	ErrIncompatible = errors.New("incompatible pair")
	// ErrNotPaired: both sides are sound, but these two ranks have nothing to say to each other.
	ErrNotPaired = errors.New("ranks share no layers or heads")
	// ErrGeometry: a geometry or a topology contradicts itself or is beyond a limit.
	ErrGeometry = errors.New("impossible geometry")
	// ErrPages: page numbers, page counts or token counts that do not fit each other or their bounds.
	ErrPages = errors.New("bad pages")
)

// IncompatibleError says in what the two sides differ.
type IncompatibleError struct {
	What            string // "page size", "TP", …
	Prefill, Decode string // both values
}

func (e *IncompatibleError) Error() string {
	return fmt.Sprintf("%s: %s: prefill has %s, decode %s", ErrIncompatible, e.What, e.Prefill, e.Decode)
}

// Is makes errors.Is(err, ErrIncompatible) true.
func (e *IncompatibleError) Is(target error) bool { return target == ErrIncompatible }

func incompatible(what string, prefill, decode any) error {
	return &IncompatibleError{What: what, Prefill: fmt.Sprint(prefill), Decode: fmt.Sprint(decode)}
}
