package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/model"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/registry"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/worker"
)

// shape is the flags that decide what an instance is.
type shape struct {
	tp, pp, chunk, pages, pageSize int
	model, backend                 string
}

func (s *shape) flags(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&s.tp, "tp", 1, "tensor-parallel ranks")
	f.IntVar(&s.pp, "pp", 1, "pipeline-parallel ranks")
	s.common(c)
}

// common is the flags that prefill and decode share.
func (s *shape) common(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&s.chunk, "chunk", 64, "tokens of a prefill step")
	f.IntVar(&s.pages, "pages", 512, "pages of KV on each rank")
	f.IntVar(&s.pageSize, "page-size", 16, "tokens of a page")
	f.StringVar(&s.model, "model", "", "GGUF `FILE` of llama architecture (default: the bundled model)")
	f.StringVar(&s.backend, "backend", "mooncake", "dialect of the control plane: mooncake")
}

// check names the flag that is wrong.
func (s *shape) check() error {
	for _, f := range []struct {
		name string
		v    int
	}{{"--chunk", s.chunk}, {"--pages", s.pages}, {"--page-size", s.pageSize}} {
		if f.v < 1 {
			return usagef("flag %s: %d, want at least 1", f.name, f.v)
		}
	}
	if s.backend != "mooncake" {
		return usagef("flag --backend: %q, want mooncake", s.backend)
	}
	return nil
}

// load reads the model.
func (s *shape) load() (m *llm.Model, name string, err error) {
	if s.model == "" {
		m, err = model.Bundled()
		return m, model.Name, err
	}
	if m, err = llm.OpenFile(s.model); err != nil {
		return nil, "", fmt.Errorf("flag --model: %w", err)
	}
	name = m.Config().Name
	if name == "" {
		name = "default"
	}
	return m, name, nil
}

func (s *shape) geometry(m *llm.Model) (llm.Geometry, error) {
	g := llm.Geometry{TP: s.tp, PP: s.pp, PageSize: s.pageSize}
	if err := g.Validate(m.Config()); err != nil {
		return g, usageError{fmt.Errorf("flags --tp, --pp, --page-size: %w", err)}
	}
	return g, nil
}

type workerFlags struct {
	shape
	logging
	listen, bootstrap, host, advertise string
	registry, token                    string
	drain                              time.Duration
	checksums                          bool
	quarantine                         int
	unproven                           time.Duration
}

// ready is the line that a worker prints when it serves.
type ready struct {
	Event     string          `json:"event"`
	Side      string          `json:"side"`
	URL       string          `json:"url"`
	Bootstrap string          `json:"bootstrap,omitempty"`
	Instance  room.InstanceID `json:"instance"`
	Model     string          `json:"model"`
}

func newWorker(side room.Side) *cobra.Command {
	var f workerFlags
	name := side.String()
	c := &cobra.Command{
		Use: name, Short: "Run a " + name + " worker", Args: noArgs,
		Long:    "Runs one " + name + " instance: an HTTP API that takes one leg of a request from the gateway.\nWhen it serves, it prints one JSON line with its addresses. It leaves on SIGINT or SIGTERM: running requests get --drain to end.\n" + exitCodes,
		Example: "  kvferry " + name + " --listen 127.0.0.1:8001\n  kvferry " + name + " --listen 0.0.0.0:8001 --host 0.0.0.0 --advertise 10.0.0.7 --tp 2",
		RunE: func(c *cobra.Command, _ []string) error {
			return f.run(c.Context(), side, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f.shape.flags(c)
	f.logging.flags(c)
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:0", "`ADDR` of the HTTP API")
	c.Flags().StringVar(&f.host, "host", "127.0.0.1", "bind address of the control and data sockets")
	c.Flags().StringVar(&f.advertise, "advertise", "", "host under which peers reach them (default: --host)")
	c.Flags().StringVar(&f.registry, "registry", "", "`URL` of the registry to be found through")
	c.Flags().StringVar(&f.token, "registry-token", "", "bearer token for it")
	c.Flags().DurationVar(&f.drain, "drain", 5*time.Second, "how long running requests may go on when the worker leaves")
	if side == room.Decode {
		c.Flags().IntVar(&f.quarantine, "quarantine-limit", 10, "percent of the pages that may be in quarantine before the worker takes no more requests and reports itself unhealthy")
		c.Flags().DurationVar(&f.unproven, "unproven-after", 0, "release quarantined pages after so long without proof, labelled as unproven (default: never)")
	}
	f.checksums = true
	if side == room.Prefill {
		c.Flags().BoolVar(&f.checksums, "checksums", true, "send a CRC32C with every write to a kvferry decode worker")
		c.Flags().StringVar(&f.bootstrap, "bootstrap", "127.0.0.1:0", "`ADDR` of the bootstrap server that decode workers ask")
	}
	return c
}

func (f *workerFlags) run(ctx context.Context, side room.Side, stdout, stderr io.Writer) error {
	log, err := f.logger(stderr)
	if err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	m, name, err := f.load()
	if err != nil {
		return err
	}
	if side == room.Decode && (f.quarantine < 1 || f.quarantine > 100) {
		return usagef("flag --quarantine-limit: %d, want 1 to 100", f.quarantine)
	}
	if side == room.Decode && f.unproven < 0 {
		return usagef("flag --unproven-after: %v, want a positive time", f.unproven)
	}
	geo, err := f.geometry(m)
	if err != nil {
		return err
	}
	api, err := listen(ctx, "--listen", f.listen)
	if err != nil {
		return err
	}
	defer func() { _ = api.Close() }() // the server has closed it
	w, err := worker.New(ctx, worker.Config{Side: side, Model: m, ModelName: name, Geometry: geo, Pages: f.pages, Chunk: f.chunk, Host: f.host, Advertise: f.advertise, Log: log, Drain: f.drain, NoChecksums: !f.checksums,
		QuarantineLimit: f.quarantine, Node: node.Config{Unproven: f.unproven}})
	if err != nil {
		return err
	}
	r := ready{Event: "ready", Side: side.String(), URL: "http://" + reachable(api.Addr(), f.advertise), Instance: w.ID(), Model: name}
	g, gctx := errgroup.WithContext(context.Background())
	serving, stop := context.WithCancel(gctx)
	defer stop()
	serve(serving, g, api, w.Handler())
	if side == room.Prefill {
		boot, err := listen(ctx, "--bootstrap", f.bootstrap)
		if err != nil {
			stop()
			return errors.Join(err, g.Wait(), closeWorker(w))
		}
		r.Bootstrap = reachable(boot.Addr(), f.advertise)
		serve(serving, g, boot, w.Bootstrap().Handler())
	}
	if err := json.NewEncoder(stdout).Encode(r); err != nil {
		stop()
		return errors.Join(err, g.Wait(), closeWorker(w))
	}
	g.Go(func() error {
		defer stop() // the servers answer until every request has ended
		return w.Run(ctx)
	})
	if f.registry != "" {
		remote := &registry.Remote{URL: f.registry, Token: f.token, Log: log}
		g.Go(func() error { return remote.Keep(ctx, f.state(w, r, side, m)) })
	}
	return errors.Join(g.Wait(), closeWorker(w))
}

// state is what the registry learns of the worker, each time anew.
func (f *workerFlags) state(w *worker.Worker, r ready, side room.Side, m *llm.Model) func() registry.Instance {
	started := time.Now()
	return func() registry.Instance {
		free, total, running, waiting := w.Load()
		i := registry.Instance{ID: r.Instance, Started: started, Side: side, URL: r.URL, Bootstrap: r.Bootstrap, Model: r.Model, Context: m.Config().Context, PageSize: f.pageSize,
			TP: f.tp, PP: f.pp, Load: registry.Load{FreePages: free, TotalPages: total, Running: running, Waiting: waiting}}
		i.Unhealthy = w.Trouble()
		return i
	}
}

// reachable is an address as others reach it: a host that means all interfaces is replaced by the advertised one.
func reachable(a net.Addr, advertise string) string {
	host, port, err := net.SplitHostPort(a.String())
	if ip := net.ParseIP(host); err == nil && advertise != "" && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort(advertise, port)
	}
	return a.String()
}

func closeWorker(w *worker.Worker) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return w.Close(ctx)
}

// listen binds a port; the error names the flag and the address.
func listen(ctx context.Context, flag, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("flag %s %s: %w", flag, addr, err)
	}
	return l, nil
}

// serve runs an HTTP server until ctx ends, then lets what is under way end for a moment.
func serve(ctx context.Context, g *errgroup.Group, l net.Listener, h http.Handler) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		if s.Shutdown(end) != nil {
			return s.Close()
		}
		return nil
	})
}
