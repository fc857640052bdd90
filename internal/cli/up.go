package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kvferry/kvferry/gateway"
	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/registry"
	"github.com/kvferry/kvferry/room"
)

type upFlags struct {
	shape
	prefills, decodes                        int
	prefillTP, prefillPP, decodeTP, decodePP int
	listen                                   string
	once, json, verbose                      bool
	prompt                                   string
	tokens                                   int
}

// samplePrompt is long enough for several chunks of the default size.
const samplePrompt = "Package http provides HTTP client and server implementations. Get, Head, Post, and PostForm make HTTP (or HTTPS) requests. " +
	"The caller must close the response body when finished with it. For control over HTTP client headers, redirect policy, and other settings, create a Client. " +
	"For control over proxies, TLS configuration, keep-alives, compression, and other settings, create a Transport. Clients and Transports are safe for concurrent use by multiple goroutines " +
	"and for efficiency should only be created once and re-used. ListenAndServe starts an HTTP server with a given address and handler. The handler is usually nil, which means to use"

func newUp() *cobra.Command {
	var f upFlags
	c := &cobra.Command{
		Use: "up", Short: "Run a whole cluster on this machine and carry one sample prompt through it", Args: noArgs,
		Long: "Starts a gateway with a registry, and prefill and decode workers as processes of their own, sends one sample prompt through them, prints the text, what\n" +
			"happened to its room and when, and whether the logits equal those of a single process bit for bit; then serves until Ctrl-C.\n" + exitCodes,
		Example: "  kvferry up\n  kvferry up --once --decode-tp 2\n  kvferry up --prefill 2 --decode 2 --prefill-tp 2 --json",
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	f.common(c)
	fl := c.Flags()
	fl.IntVar(&f.prefills, "prefill", 1, "prefill workers")
	fl.IntVar(&f.decodes, "decode", 1, "decode workers")
	fl.IntVar(&f.prefillTP, "prefill-tp", 1, "tensor-parallel ranks of a prefill worker")
	fl.IntVar(&f.prefillPP, "prefill-pp", 1, "pipeline-parallel ranks of a prefill worker")
	fl.IntVar(&f.decodeTP, "decode-tp", 1, "tensor-parallel ranks of a decode worker")
	fl.IntVar(&f.decodePP, "decode-pp", 1, "pipeline-parallel ranks of a decode worker")
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8000", "`ADDR` of the gateway")
	fl.BoolVar(&f.once, "once", false, "exit after the sample; the exit code tells whether it succeeded")
	fl.BoolVar(&f.json, "json", false, "print JSON, one object a line; the last one is the result")
	fl.BoolVar(&f.verbose, "verbose", false, "print the workers' logs")
	fl.StringVar(&f.prompt, "prompt", samplePrompt, "`TEXT` of the sample")
	fl.IntVar(&f.tokens, "tokens", 40, "tokens to generate for the sample")
	c.Flags().Lookup("chunk").DefValue = "32"
	f.chunk = 32
	return c
}

func (f *upFlags) check() error {
	for _, n := range []struct {
		name string
		v    int
	}{{"--prefill", f.prefills}, {"--decode", f.decodes}, {"--tokens", f.tokens}} {
		if n.v < 1 || n.v > 64 && n.name != "--tokens" {
			return usagef("flag %s: %d, want 1 to 64", n.name, n.v)
		}
	}
	return f.shape.check()
}

func (f *upFlags) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	m, name, err := f.load()
	if err != nil {
		return err
	}
	for _, s := range []struct {
		flag   string
		tp, pp int
	}{{"--prefill-tp, --prefill-pp", f.prefillTP, f.prefillPP}, {"--decode-tp, --decode-pp", f.decodeTP, f.decodePP}} {
		if err := (llm.Geometry{TP: s.tp, PP: s.pp, PageSize: f.pageSize}).Validate(m.Config()); err != nil {
			return usageError{fmt.Errorf("flags %s: %w", s.flag, err)}
		}
	}
	p := &printer{out: stdout, json: f.json}
	began := time.Now()
	var logs io.Writer
	if f.verbose {
		logs = stderr
	}
	l, err := listen(ctx, "--listen", f.listen)
	if err != nil {
		return err
	}
	store, err := registry.NewStore(registry.DefaultTTL)
	if err != nil {
		return err
	}
	rl, err := listen(ctx, "(registry)", "127.0.0.1:0")
	if err != nil {
		store.Close()
		return err
	}
	g, err := gateway.New(gateway.Config{})
	if err != nil {
		store.Close()
		return err
	}
	serving, stop := context.WithCancel(context.Background())
	eg, _ := errgroup.WithContext(serving)
	serve(serving, eg, rl, store.Handler(""))
	serve(serving, eg, l, g)
	known := make(chan int, 1) // usable workers that the gateway knows
	eg.Go(func() error {
		give := feed(g, nil, nil)
		return store.Watch(serving, func(s registry.Snapshot) {
			give(s)
			select {
			case <-known: // only the newest number counts
			default:
			}
			known <- usable(s)
		})
	})
	defer func() {
		store.Close() // ends its watchers
		stop()
		_ = eg.Wait() // the listeners are closed
		g.Close()
	}()
	fam := newFamily(logs)
	defer fam.stop() // before the registry ends, so that the workers can leave it
	if err := f.start(ctx, fam, p, "http://"+rl.Addr().String()); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := f.whole(ctx, known); err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	p.ready(url, name, time.Since(began))
	s := &sample{flags: f, url: url, model: m, name: name, kids: fam.kids, p: p}
	sctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	died := make(chan error, 1)
	go func() { died <- fam.watch(ctx) }()
	done := make(chan struct{})
	var sampleErr error
	go func() {
		sampleErr = s.run(sctx)
		close(done)
	}()
	select {
	case <-done:
		err = sampleErr
	case err = <-died:
		cancel()
		<-done // it ends for the same reason
	}
	if err != nil || f.once || ctx.Err() != nil {
		return err
	}
	p.serving(url, name)
	return <-died
}

// start runs the workers.
func (f *upFlags) start(ctx context.Context, fam *family, p *printer, registry string) error {
	common := []string{"--pages", strconv.Itoa(f.pages), "--page-size", strconv.Itoa(f.pageSize), "--chunk", strconv.Itoa(f.chunk), "--drain", "500ms", "--backend", f.backend, "--registry", registry}
	if f.model != "" {
		common = append(common, "--model", f.model)
	}
	for _, role := range []struct {
		side      room.Side
		n, tp, pp int
	}{{room.Prefill, f.prefills, f.prefillTP, f.prefillPP}, {room.Decode, f.decodes, f.decodeTP, f.decodePP}} {
		for i := range role.n {
			args := append([]string{role.side.String(), "--tp", strconv.Itoa(role.tp), "--pp", strconv.Itoa(role.pp)}, common...)
			k, err := fam.add(ctx, fmt.Sprintf("%s %d", role.side, i), args...)
			if err != nil {
				return err
			}
			p.worker(k)
		}
	}
	return nil
}

func usable(s registry.Snapshot) (n int) {
	for _, i := range s.Instances {
		if i.Usable() {
			n++
		}
	}
	return n
}

// whole waits until the gateway knows every worker.
func (f *upFlags) whole(ctx context.Context, known <-chan int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for n := 0; n < f.prefills+f.decodes; {
		select {
		case n = <-known:
		case <-ctx.Done():
			return fmt.Errorf("the gateway knows %d of %d workers: %w", n, f.prefills+f.decodes, ctx.Err())
		}
	}
	return nil
}

// printer writes what `up` says, as text or as JSON lines.
type printer struct {
	out  io.Writer
	json bool
}

func (p *printer) object(v any) { _ = json.NewEncoder(p.out).Encode(v) } // nobody reads any more

func (p *printer) text(format string, args ...any) {
	if !p.json {
		_, _ = fmt.Fprintf(p.out, format, args...) // nobody reads any more
	}
}

func (p *printer) worker(k *child) {
	if p.json {
		p.object(map[string]any{"event": "worker", "name": k.name, "url": k.ready.URL, "bootstrap": k.ready.Bootstrap, "pid": k.cmd.Process.Pid, "instance": k.ready.Instance})
		return
	}
	p.text("%-10s pid %-7d %s", k.name, k.cmd.Process.Pid, k.ready.URL)
	if k.ready.Bootstrap != "" {
		p.text("  bootstrap %s", k.ready.Bootstrap)
	}
	p.text("\n")
}

func (p *printer) ready(url, model string, took time.Duration) {
	if p.json {
		p.object(map[string]any{"event": "ready", "url": url, "model": model, "ms": ms(took)})
		return
	}
	p.text("%-10s pid %-7s %s  model %s, ready after %.2f s\n\n", "gateway", "(this)", url, model, took.Seconds())
}

func (p *printer) serving(url, model string) {
	if p.json {
		p.object(map[string]any{"event": "serving", "url": url})
		return
	}
	p.text("\nserving until Ctrl-C:\n\n  curl -N %s/v1/completions -H 'Content-Type: application/json' \\\n    -d '{\"model\":%q,\"prompt\":\"Package json implements\",\"max_tokens\":40,\"temperature\":0,\"stream\":true}'\n", url, model)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// get reads a JSON answer.
func get(ctx context.Context, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s answered %s", errNoOutput, strings.TrimSpace(url), resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(v)
}
