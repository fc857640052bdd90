// Command interoppeer is one rank of a kvferry prefill or decode instance, driven by JSON lines on standard input, so that interop/scenarios.py
// can put kvferry on either side of an unmodified SGLang. interop/PROTOCOL.md says what it speaks.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/room"
)

type settings struct {
	role, backend, bootstrap                  string
	serve                                     bool
	tp, tpRank, pp, ppRank                    int
	layers, heads, pageSize, headBytes, pages int
	auxSlots, auxBytes                        int
	mla, layerIDs, verbose                    bool
}

// hand is one room and what the harness has said of it.
type hand struct {
	half handoff.Half
	tx   *handoff.Sender
	rx   *handoff.Receiver
	aux  int
	left int // pages that the chunks to come have
}

func (h *hand) cleared() <-chan struct{} {
	if h.tx != nil {
		return h.tx.Cleared()
	}
	return h.rx.Cleared()
}

type peer struct {
	settings
	side    room.Side
	kv      [][]byte
	item    int
	aux     []byte
	auxItem int
	rooms   map[room.ID]*hand
	engine  *engine
	prefill *handoff.Prefill
	decode  *handoff.Decode
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "interoppeer:", err)
		os.Exit(1)
	}
}

func parse() (s settings, err error) {
	f := flag.NewFlagSet("interoppeer", flag.ContinueOnError)
	f.StringVar(&s.role, "role", "", "prefill or decode")
	f.StringVar(&s.backend, "backend", "mooncake", "mooncake")
	f.StringVar(&s.bootstrap, "bootstrap", "", "HOST:PORT of the registry")
	f.BoolVar(&s.serve, "serve-bootstrap", false, "serve the registry")
	f.IntVar(&s.tp, "tp", 1, "")
	f.IntVar(&s.tpRank, "tp-rank", 0, "")
	f.IntVar(&s.pp, "pp", 1, "")
	f.IntVar(&s.ppRank, "pp-rank", 0, "")
	f.IntVar(&s.layers, "layers", 2, "")
	f.IntVar(&s.heads, "heads", 4, "")
	f.IntVar(&s.pageSize, "page-size", 4, "")
	f.IntVar(&s.headBytes, "head-bytes", 64, "")
	f.IntVar(&s.pages, "pages", 64, "")
	f.IntVar(&s.auxSlots, "aux-slots", 16, "")
	f.IntVar(&s.auxBytes, "aux-bytes", 64, "")
	f.BoolVar(&s.mla, "mla", false, "one KV region per layer, the same on all TP ranks")
	f.BoolVar(&s.layerIDs, "layer-ids", false, "register a layer number for each region")
	f.BoolVar(&s.verbose, "verbose", false, "log each step of each room; not for measurements")
	f.String("pp-file", "", "not needed here")
	if err := f.Parse(os.Args[1:]); err != nil {
		return s, err
	}
	if s.backend != "mooncake" {
		return s, fmt.Errorf("backend %q, want mooncake", s.backend)
	}
	if s.role != "prefill" && s.role != "decode" {
		return s, fmt.Errorf("role %q, want prefill or decode", s.role)
	}
	return s, nil
}

func run() error {
	s, err := parse()
	if err != nil {
		return err
	}
	p := &peer{settings: s, rooms: map[room.ID]*hand{}}
	p.side, _ = room.ParseSide(s.role)
	if s.verbose {
		level.Set(slog.LevelDebug)
	}
	if err := p.start(context.Background()); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		if len(in.Bytes()) == 0 {
			continue
		}
		began := monotonic()
		var o op
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return fmt.Errorf("line %.80q: %w", in.Text(), err)
		}
		if o.Op == "quit" {
			return nil
		}
		a, err := p.run(&o)
		if a == nil {
			a = answer{}
		}
		if err != nil {
			a["error"] = err.Error()
		}
		a["op"], a["started_ns"], a["t_ns"], a["reply"] = o.Op, began, monotonic(), o.ID
		if o.Room.set {
			a["room"] = o.Room.id
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return in.Err()
}

// monotonic is CLOCK_MONOTONIC in nanoseconds, which the harness compares between processes.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // the clock is always there on Linux
	}
	return ts.Nano()
}

var level slog.LevelVar // Info

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: &level}))
}

// listenBootstrap binds the registry's port.
func (p *peer) listenBootstrap() (net.Listener, error) {
	addr := p.bootstrap
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	return net.Listen("tcp", addr)
}

func serve(l net.Listener, h http.Handler) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			logger().Error("registry", "error", err)
		}
	}()
}

func portOf(addr string) int {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return n
}
