package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kvferry/kvferry/room"
)

// object is a JSON object read by exact names (encoding/json would also take names in another case).
type object map[string]json.RawMessage

func parseObject(b []byte) (object, error) {
	var o object
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, fmt.Errorf("%w: want a JSON object: %w", ErrInvalid, err)
	}
	if o == nil {
		return nil, fmt.Errorf("%w: want a JSON object, got null", ErrInvalid)
	}
	return o, nil
}

// maxShown is how much of a wrong value an error shows, in bytes.
const maxShown = 40

func shown(b []byte) string {
	if len(b) > maxShown {
		return strconv.Quote(string(b[:maxShown])) + "…"
	}
	return strconv.Quote(string(b))
}

// whole reads a whole number from low to high. SGLang's Python also takes them as text, and so do we.
func (o object) whole(name string, low, high int) (int, error) {
	v, ok := o[name]
	if !ok {
		return 0, missing(name)
	}
	n, err := strconv.Atoi(unquoted(v))
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%w: field %q is %s, want a whole number from %d to %d", ErrInvalid, name, shown(v), low, high)
	}
	return n, nil
}

// unquoted takes the quotes off a number that was sent as text.
func unquoted(v []byte) string {
	if len(v) >= 2 && v[0] == '"' {
		v = v[1 : len(v)-1]
	}
	return string(v)
}

// into reads a field of another type; it reports whether the field was there and not null.
func (o object) into(name string, dst any) (bool, error) {
	v, ok := o[name]
	if !ok || string(v) == "null" {
		return false, nil
	}
	if err := json.Unmarshal(v, dst); err != nil {
		return false, fmt.Errorf("%w: field %q is %s, want %s", ErrInvalid, name, shown(v), kind(dst))
	}
	return true, nil
}

// kind is how an error calls the type that dst points to.
func kind(dst any) string {
	switch reflect.TypeOf(dst).Elem().Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	default:
		return reflect.TypeOf(dst).Elem().String()
	}
}

// maxText bounds every text of a row, in bytes.
const maxText = 256

func (o object) text(name string, dst *string) (bool, error) {
	ok, err := o.into(name, dst)
	if err == nil && len(*dst) > maxText {
		err = fmt.Errorf("%w: field %q has %d bytes, limit %d", ErrTooLarge, name, len(*dst), maxText)
	}
	return ok, err
}

func missing(name string) error { return fmt.Errorf("%w: field %q is missing", ErrInvalid, name) }

// roomNumber is a room in JSON, as a number or as text.
type roomNumber room.ID

func (n *roomNumber) UnmarshalJSON(b []byte) error {
	id, err := room.ParseID(unquoted(b))
	*n = roomNumber(id)
	return err
}

// sameJSON compares two documents by value, numbers by their text; an absent one equals an absent one only.
func sameJSON(a, b json.RawMessage) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	va, errA := decodeAny(a)
	vb, errB := decodeAny(b)
	return errA == nil && errB == nil && reflect.DeepEqual(va, vb)
}

func decodeAny(b []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

// pythonJSON encodes as Python's json.dumps does by default: a blank behind every comma and colon, everything beyond ASCII escaped.
func pythonJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	b := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	out := make([]byte, 0, len(b)+len(b)/4)
	inside := false
	for i := 0; i < len(b); {
		c := b[i]
		switch {
		case inside && c == '\\': // the encoder's output is sound: something follows
			out = append(out, c, b[i+1])
			i += 2
		case inside && c >= 0x7f:
			r, n := utf8.DecodeRune(b[i:])
			out = appendEscaped(out, r)
			i += n
		default:
			if c == '"' {
				inside = !inside
			}
			out = append(out, c)
			if !inside && (c == ',' || c == ':') {
				out = append(out, ' ')
			}
			i++
		}
	}
	return out, nil
}

func appendEscaped(b []byte, r rune) []byte {
	if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
		return fmt.Appendf(b, `\u%04x\u%04x`, hi, lo)
	}
	return fmt.Appendf(b, `\u%04x`, r)
}
