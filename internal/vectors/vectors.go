// Package vectors reads the recorded answers of SGLang's own code, which the tests of other packages hold ours against.
//
// The tables are JSON lines in testdata/sglang-0.5.23; SOURCE.json there says from which release they come and when they were recorded.
// The environment variable KVFERRY_VECTORS names a folder to read in their place. Only tests import this package. It starts no goroutine;
// all of it may be called concurrently.
package vectors

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"
)

// Env names the folder that replaces the embedded tables when it is set and not empty.
const Env = "KVFERRY_VECTORS"

const (
	root = "testdata/sglang-0.5.23"
	ext  = ".jsonl"
	// maxLine bounds one line of a table; the longest recorded one (a session with a large frame) has well under 1 MiB.
	maxLine = 16 << 20
)

//go:embed testdata/sglang-0.5.23
var embedded embed.FS

// Each calls fn for every line of a table, in order: file without its extension ("rank_mapping", "sessions/mooncake/happy"), line counted
// from 1. It logs the number of lines, and fails t if the table is missing or empty, or if a line does not decode exactly: unknown fields,
// missing ones (a field of T tagged omitempty or omitzero, and a pointer or interface, may be missing), nulls (only what can
// be nil in Go may be null), arrays of another length than T's, and data after the object all fail.
// Numbers decoded into an interface are json.Number; integers beyond 2^53 that the tables hold are decimal strings.
//
// A test that calls Each names the table in a string literal and has Vector in its name: that is how the table counts as asserted.
func Each[T any](t testing.TB, file string, fn func(t testing.TB, line int, v T)) {
	t.Helper()
	f, err := folder().Open(file + ext)
	if err != nil {
		t.Fatalf("vectors: open table %q: %v", file, err)
	}
	defer func() { _ = f.Close() }() // read only
	lines := 0
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, maxLine)
	for sc.Scan() {
		lines++
		v, err := decode[T](sc.Bytes())
		if err != nil {
			t.Fatalf("vectors: %s line %d: %v", file, lines, err)
		}
		fn(t, lines, v)
	}
	if err := sc.Err(); err != nil {
		t.Fatalf("vectors: read %s after line %d: %v", file, lines, err)
	}
	if lines == 0 {
		t.Fatalf("vectors: table %s has no line", file)
	}
	t.Logf("vectors: %s: %d lines asserted", file, lines)
}

func folder() fs.FS {
	if dir := os.Getenv(Env); dir != "" {
		return os.DirFS(dir)
	}
	sub, err := fs.Sub(embedded, root)
	if err != nil {
		panic(err) // root is a constant that names an embedded folder
	}
	return sub
}

func decode[T any](line []byte) (T, error) {
	var v T
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return v, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return v, errors.New("data after the object")
	}
	return v, complete(line, reflect.TypeFor[T](), "")
}

// complete reports the first field of typ that raw lacks, a null where typ has none, and an array that is too short or too long.
// encoding/json makes zeros of all these, or drops what is too much, and what is left may be the right answer.
func complete(raw []byte, typ reflect.Type, at string) error {
	if reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	if string(raw) == "null" {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
			return nil
		default:
			return fmt.Errorf("%s: null", at)
		}
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return complete(raw, typ.Elem(), at)
	case reflect.Slice, reflect.Array:
		if typ.Elem().Kind() == reflect.Uint8 {
			return nil
		}
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if typ.Kind() == reflect.Array && len(items) != typ.Len() {
			return fmt.Errorf("%s: %d elements, want %d", at, len(items), typ.Len())
		}
		for i, item := range items {
			if err := complete(item, typ.Elem(), fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		for _, f := range reflect.VisibleFields(typ) {
			if err := completeField(fields, f, at); err != nil {
				return err
			}
		}
	default: // a value has no fields
	}
	return nil
}

func completeField(fields map[string]json.RawMessage, f reflect.StructField, at string) error {
	name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
	if !f.IsExported() || f.Anonymous || name == "-" {
		return nil
	}
	if name == "" {
		name = f.Name
	}
	at = strings.TrimPrefix(at+"."+name, ".")
	raw, ok := fields[name]
	switch {
	case ok:
		return complete(raw, f.Type, at)
	case strings.Contains(opts, "omit"), f.Type.Kind() == reflect.Pointer, f.Type.Kind() == reflect.Interface:
		return nil
	}
	return fmt.Errorf("field %q is missing", at)
}
