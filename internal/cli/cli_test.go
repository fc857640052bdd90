package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/drill"
	"github.com/kvferry/kvferry/event"
)

func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

func TestWrongUsageExitsWith2AndNamesTheFlag(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"up --prefill 0", "--prefill: 0"}, {"up --decode 65", "--decode: 65"}, {"up --chunk 0", "--chunk: 0"}, {"up --backend nixl", "--backend"},
		{"up --prefill-tp 3", "--prefill-tp"}, {"up --decode-pp 7", "--decode-pp"}, {"up --nonsense", "--nonsense"}, {"up extra", "extra"},
		{"prefill --tp 3", "--tp"}, {"decode --pages -1", "--pages"}, {"prefill --log loud", "--log"}, {"decode --tp x", "--tp"},
		{"gateway --prefill http://127.0.0.1:1", "--prefill"}, {"gateway --decode ftp://x", "--decode"}, {"nonsense", "nonsense"},
		{"drill --only p-nonsense", "p-nonsense"}, {"drill --only killed@noon", "killed@noon"}, {"drill --repeat 0", "--repeat"}, {"drill --jobs 65", "--jobs"}, {"drill extra", "extra"},
	} {
		code, out, err := call(t, strings.Fields(c.args)...)
		if code != 2 || out != "" || !strings.Contains(err, c.says) {
			t.Errorf("kvferry %s: %d %q %q, want 2 and a word on %s", c.args, code, out, err, c.says)
		}
	}
}

func TestATakenPortIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	addr := l.Addr().String()
	for _, args := range [][]string{{"up", "--listen", addr}, {"decode", "--listen", addr}, {"gateway", "--listen", addr}, {"prefill", "--bootstrap", addr}} {
		if code, _, msg := call(t, args...); code != 1 || !strings.Contains(msg, addr) {
			t.Errorf("kvferry %s: %d %q", args, code, msg)
		}
	}
}

func TestABrokenModelIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broken.gguf")
	if err := os.WriteFile(path, []byte("GGUF\x03\x00\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{path, path + ".missing"} {
		if code, _, msg := call(t, "decode", "--model", file); code != 1 || !strings.Contains(msg, file) {
			t.Errorf("%s: %d %q", file, code, msg)
		}
	}
}

func TestVersion(t *testing.T) {
	code, out, _ := call(t, "version", "--json")
	var v map[string]string
	if err := json.Unmarshal([]byte(out), &v); code != 0 || err != nil || v["version"] != Version {
		t.Errorf("%d %q: %v", code, out, err)
	}
	if code, out, _ := call(t, "version", "--licenses"); code != 0 || !strings.Contains(out, "The Go Authors") {
		t.Errorf("%d %.200q", code, out)
	}
}

func TestEveryCommandHasHelpWithExampleAndExitCodes(t *testing.T) {
	for _, c := range newRoot().Commands() {
		if c.Example == "" || c.Short == "" {
			t.Errorf("%s lacks an example or a sentence", c.Name())
		}
		if code, out, _ := call(t, c.Name(), "--help"); code != 0 || !strings.Contains(out, c.Example) || c.Name() != "version" && !strings.Contains(out, "Exit codes") {
			t.Errorf("%s --help: %d %.100q", c.Name(), code, out)
		}
	}
	if code, out, _ := call(t, "completion", "bash"); code != 0 || !strings.Contains(out, "kvferry") {
		t.Errorf("completion: %d", code)
	}
}

func TestDrillListsEveryCell(t *testing.T) {
	code, out, _ := call(t, "drill", "--list")
	if code != 0 || !strings.Contains(out, "without meaning") || !strings.Contains(out, "n/a: decode writes nothing") {
		t.Errorf("%d %.200q", code, out)
	}
	code, out, _ = call(t, "drill", "--list", "--json", "--only", "p-killed,d-write-error@in-flight")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var c drill.Cell
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &c); code != 0 || err != nil || len(lines) != 8 || c.Side != "d" || c.NA == "" {
		t.Errorf("%d %d lines, the last %+v: %v", code, len(lines), c, err)
	}
}

func TestDrillTable(t *testing.T) {
	var out, notes bytes.Buffer
	cells, err := drill.Select(drill.Matrix(), []string{"p-killed", "d-abort@cleared"})
	if err != nil {
		t.Fatal(err)
	}
	tab := &drillTable{out: &out, progress: io.Discard, cells: cells}
	tab.begin()
	for _, c := range cells[:7] {
		r := drill.Result{Cell: c, OK: c.Moment != drill.Queued, Runs: 3}
		if !r.OK {
			r.Bad, r.Problems = 1, []string{"something is wrong"}
		}
		tab.add(r)
	}
	tab.end(&notes)
	for _, want := range []string{"p-killed             ok         FAIL 1/3   ok", "p-killed@queued: not ok in 1 of 3 runs", "something is wrong", "6 cells ok, 1 not ok (21 runs)",
		"8 combinations: 7 drilled, 1 without meaning", "1  nothing is left to be given up"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if notes.Len() > 0 {
		t.Errorf("%q", notes.String())
	}
}

func TestHiddenShare(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*1e6) }
	list := []event.Event{
		{Kind: event.Computed, At: at(10), Chunk: 0}, {Kind: event.Sending, At: at(10), Chunk: 0, Peer: "d"}, {Kind: event.Applied, At: at(20), Chunk: 0, Peer: "d", Bytes: 100},
		{Kind: event.Sending, At: at(25), Chunk: 1, Peer: "d"}, {Kind: event.Computed, At: at(30), Chunk: 2}, {Kind: event.Applied, At: at(35), Chunk: 1, Peer: "d", Bytes: 50},
		{Kind: event.Sending, At: at(30), Chunk: 2, Peer: "d"}, {Kind: event.Applied, At: at(40), Chunk: 2, Peer: "d", Bytes: 5},
	}
	// Of 30 ms of writes, 10 and 5 lie before the last chunk was computed.
	if bytes, hidden := measure(list); bytes != 155 || hidden != 0.5 {
		t.Errorf("%d bytes, %v hidden", bytes, hidden)
	}
}
