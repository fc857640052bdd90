package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Errors of reading a body.
var errBody = errors.New("invalid body")

// member is a member of the top-level object: where its value is in the body.
type member struct {
	name     string
	from, to int
}

// scan finds the top-level members of a JSON object. Errors say at which byte the body is broken.
func scan(b []byte) ([]member, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("%w: malformed JSON at byte %d: %w", errBody, syntax.Offset, err)
		}
		return nil, fmt.Errorf("%w: %w", errBody, err)
	}
	i := space(b, 0)
	if b[i] != '{' {
		return nil, fmt.Errorf("%w: at byte %d: want a JSON object", errBody, i+1)
	}
	var list []member
	for i = space(b, i+1); b[i] != '}'; {
		end := value(b, i)
		var m member
		if err := json.Unmarshal(b[i:end], &m.name); err != nil {
			return nil, fmt.Errorf("%w: name at byte %d: %w", errBody, i+1, err)
		}
		m.from = space(b, space(b, end)+1) // behind the colon
		m.to = value(b, m.from)
		list = append(list, m)
		if i = space(b, m.to); b[i] == ',' {
			i = space(b, i+1)
		}
	}
	return list, nil
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// value is the end of the JSON value that begins at i. The body is valid JSON.
func value(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // the end of the object that a number or word stands in
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\n', '\t', '\r', ':':
			if depth == 0 {
				return i
			}
		}
	}
	return i
}

// setting is a member to be set, its value as JSON.
type setting struct {
	name, value string
}

// patch returns b with members set: the values of those that are there are replaced, the others are added at the end. Everything else stays
// as it is to the byte.
func patch(b []byte, members []member, set []setting) []byte {
	out := make([]byte, 0, len(b)+128)
	at, empty := 0, len(members) == 0
	seen := make([]bool, len(set))
	for _, m := range members {
		for k, s := range set {
			if m.name == s.name {
				out = append(append(out, b[at:m.from]...), s.value...)
				at, seen[k] = m.to, true
			}
		}
	}
	end := len(b) - 1
	for b[end] != '}' {
		end--
	}
	out = append(out, b[at:end]...)
	for k, s := range set {
		if seen[k] {
			continue
		}
		if !empty {
			out = append(out, ',')
		}
		empty = false
		out = append(out, '"')
		out = append(append(out, s.name...), `":`...)
		out = append(out, s.value...)
	}
	return append(out, b[end:]...)
}

// elements is the number of elements of a JSON array; -1: it is none.
func elements(b []byte) int {
	var list []json.RawMessage
	if len(b) == 0 || b[0] != '[' || json.Unmarshal(b, &list) != nil {
		return -1
	}
	return len(list)
}
