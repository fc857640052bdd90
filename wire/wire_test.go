package wire

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// framesOf makes frames of texts.
func framesOf(texts ...string) [][]byte {
	frames := make([][]byte, len(texts))
	for i, s := range texts {
		frames[i] = []byte(s)
	}
	return frames
}

func textsOf(frames [][]byte) []string {
	texts := make([]string, len(frames))
	for i, b := range frames {
		texts[i] = string(b)
	}
	return texts
}

type appender interface {
	Message
	AppendFrames(dst [][]byte) [][]byte
}

// checkGolden asserts that m is written as want, by both ways of writing, and that want is read as m.
func checkGolden[M appender](t *testing.T, m M, parse func([][]byte) (M, error), want ...string) {
	t.Helper()
	if got := textsOf(m.AppendFrames(nil)); !reflect.DeepEqual(got, want) {
		t.Errorf("AppendFrames(%+v)\n got %q\nwant %q", m, got, want)
	}
	var w Writer
	for range 2 { // the second message goes into used memory
		w.Reset()
		m.AppendTo(&w)
		if got := textsOf(w.Frames()); !reflect.DeepEqual(got, want) {
			t.Errorf("AppendTo(%+v)\n got %q\nwant %q", m, got, want)
		}
	}
	got, err := parse(framesOf(want...))
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("parse(%q)\n got %+v, %v\nwant %+v", want, got, err, m)
	}
}

// refusal is an input that a reader must refuse with an error of one kind.
type refusal struct {
	frames []string
	want   error
}

func checkRefusals[M any](t *testing.T, parse func([][]byte) (M, error), rows ...refusal) {
	t.Helper()
	for _, row := range rows {
		m, err := parse(framesOf(row.frames...))
		if !errors.Is(err, row.want) {
			t.Errorf("parse(%.200q) = %+v, %v, want %v", row.frames, m, err, row.want)
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Message == "" || e.Detail == "" || len(err.Error()) > 512 {
			t.Errorf("parse(%.200q): error %.600q doesn't say what is wrong", row.frames, err)
		}
		kinds := 0
		for _, kind := range []error{ErrTruncated, ErrUnknownType, ErrRange} {
			if errors.Is(err, kind) {
				kinds++
			}
		}
		if kinds != 1 {
			t.Errorf("parse(%.200q): %v is of %d kinds", row.frames, err, kinds)
		}
		if !reflect.ValueOf(m).IsZero() {
			t.Errorf("parse(%.200q) failed, but returned %+v", row.frames, m)
		}
	}
}

// checkShortened asserts that every proper prefix of frames below least frames is ErrTruncated.
func checkShortened[M any](t *testing.T, parse func([][]byte) (M, error), least int, frames [][]byte) {
	t.Helper()
	for n := range least {
		if _, err := parse(frames[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("%d of %d frames: %v, want ErrTruncated", n, len(frames), err)
		}
	}
	many := make([][]byte, MaxFrames+1)
	copy(many, frames)
	if _, err := parse(many); !errors.Is(err, ErrRange) {
		t.Errorf("%d frames: %v, want ErrRange", len(many), err)
	}
}

// checkFuzzed asserts what holds for any input: no panic, errors of a known kind, and what was read is read again from what is written.
func checkFuzzed[M appender](t *testing.T, parse func([][]byte) (M, error), input []byte) {
	t.Helper()
	frames := splitInput(input)
	before := strings.Join(textsOf(frames), "\x00")
	m, err := parse(frames)
	if strings.Join(textsOf(frames), "\x00") != before {
		t.Fatalf("input changed: %q", frames)
	}
	if err != nil {
		if !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrUnknownType) && !errors.Is(err, ErrRange) {
			t.Fatalf("%q: %v is of no kind", frames, err)
		}
		if len(err.Error()) > 512 {
			t.Fatalf("%q: error of %d bytes", frames, len(err.Error()))
		}
		return
	}
	written := m.AppendFrames(nil)
	again, err := parse(written)
	if err != nil || !reflect.DeepEqual(again, m) {
		t.Fatalf("%q\nread    %+v\nwritten %q\nread    %+v, %v", frames, m, written, again, err)
	}
}

// splitInput makes frames of fuzz input: each is led by its length as one byte, 255 standing for the rest.
func splitInput(b []byte) (frames [][]byte) {
	for len(b) > 0 {
		n := int(b[0])
		if b = b[1:]; n > len(b) || n == 255 {
			n = len(b)
		}
		frames = append(frames, b[:n:n])
		b = b[n:]
	}
	return frames
}

// joinInput is the reverse of splitInput, for seeds.
func joinInput(frames [][]byte) (b []byte) {
	for _, f := range frames {
		if len(f) >= 255 {
			return append(append(b, 255), f...)
		}
		b = append(append(b, byte(len(f))), f...)
	}
	return b
}

func seed(f *testing.F, frames [][]byte) {
	f.Add(joinInput(frames))
	if len(frames) > 1 {
		f.Add(joinInput(frames[:len(frames)-1]))
	}
}
