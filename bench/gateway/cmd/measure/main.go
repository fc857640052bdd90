// Measure runs the performance matrix: each gateway and the bare worker under
// the same load, one after the other, several times over.
//
//	go build -o bin/ ./cmd/... && bin/measure -out result.json peers/*.json
//
// Gateways run in fresh processes for each round, in front of one prefill and
// one decode worker that answer at once. The workers run in a process of their
// own (the fakeworker beside this program). Added latency is a gateway's figure
// less that of the bare worker, which answers without a second leg, in the same
// round.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/fakeworker"
	"github.com/kvferry/kvferry/bench/gateway/gateway"
	"github.com/kvferry/kvferry/bench/gateway/load"
)

// Workload is one column of the matrix.
type Workload struct {
	Name   string
	API    string
	Size   int
	Stream bool
	Tokens int
	Token  time.Duration // between two tokens
	Rate   float64       // requests per second; 0: closed loop
	Conns  int           // its own number of connections; 0: those of -conns
}

var workloads = []Workload{
	{Name: "small", API: "chat", Size: 200, Tokens: 1},
	{Name: "stream32", API: "chat", Size: 200, Stream: true, Tokens: 32},
	{Name: "stream32-paced", API: "chat", Size: 200, Stream: true, Tokens: 32, Token: 5 * time.Millisecond},
	{Name: "8k", API: "chat", Size: 8 << 10, Tokens: 1},
	{Name: "1m", API: "chat", Size: 1 << 20, Tokens: 1},
	{Name: "small-generate", API: "generate", Size: 200, Tokens: 1},
	{Name: "small-500rps", API: "chat", Size: 200, Tokens: 1, Rate: 500, Conns: 64},
	{Name: "stream32-100rps", API: "chat", Size: 200, Stream: true, Tokens: 32, Token: 5 * time.Millisecond, Rate: 100, Conns: 64},
	{Name: "hold1000", API: "chat", Size: 200, Stream: true, Tokens: 32, Token: 100 * time.Millisecond, Conns: 1000},
}

// Cell is one measurement.
type Cell struct {
	Gateway  string      `json:"gateway"`
	Workload string      `json:"workload"`
	Conns    int         `json:"conns"`
	Round    int         `json:"round"`
	Load     load.Report `json:"load"`

	CPUPerThousand float64 `json:"gateway_cpu_seconds_per_1000_requests,omitempty"`
	CPUSeconds     float64 `json:"gateway_cpu_seconds,omitempty"`
	IdleRSS        int64   `json:"gateway_idle_rss_bytes,omitempty"` // after its start, before any load
	RSS            int64   `json:"gateway_rss_bytes,omitempty"`      // just after the load
	PeakRSS        int64   `json:"gateway_peak_rss_bytes,omitempty"`
	Threads        int     `json:"gateway_threads,omitempty"`
	LoadAverage    string  `json:"load_average"`
	Error          string  `json:"error,omitempty"`
}

// Result is the file that -out names.
type Result struct {
	Started  time.Time `json:"started"`
	CPUs     int       `json:"cpus"`
	Go       string    `json:"go"`
	Duration string    `json:"duration_per_cell"`
	Cells    []Cell    `json:"cells"`
}

const direct = "direct"

func main() {
	log.SetPrefix("measure: ")
	out := flag.String("out", "", "file for the raw result; read instead of written with -table")
	table := flag.Bool("table", false, "only print the tables of an earlier result")
	rounds := flag.Int("rounds", 3, "rounds")
	duration := flag.Duration("duration", 3*time.Second, "length of one measurement")
	conns := flag.String("conns", "1,32,256", "numbers of connections")
	names := flag.String("workloads", "all", "names of workloads")
	logDir := flag.String("logs", "", "folder for the gateways' output; discarded by default")
	flag.Parse()

	if *table {
		var res Result
		b, err := os.ReadFile(*out)
		if err == nil {
			err = json.Unmarshal(b, &res)
		}
		if err != nil {
			log.Fatal(err)
		}
		res.print(os.Stdout)
		return
	}
	m := matrix{duration: *duration, rounds: *rounds, logDir: *logDir}
	for _, s := range strings.Split(*conns, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			log.Fatal(err)
		}
		m.conns = append(m.conns, n)
	}
	if *names == "all" {
		m.workloads, *names = workloads, ""
	}
	for _, name := range strings.FieldsFunc(*names, func(r rune) bool { return r == ',' }) {
		i := slices.IndexFunc(workloads, func(w Workload) bool { return w.Name == name })
		if i < 0 {
			log.Fatalf("unknown workload %q", name)
		}
		m.workloads = append(m.workloads, workloads[i])
	}
	for _, path := range flag.Args() {
		def, err := gateway.ReadDefinition(path)
		if err != nil {
			log.Fatal(err)
		}
		m.gateways = append(m.gateways, def)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	res, err := m.run(ctx)
	if *out != "" && len(res.Cells) > 0 {
		b, _ := json.MarshalIndent(res, "", " ")
		if err := os.WriteFile(*out, append(b, '\n'), 0o666); err != nil {
			log.Print(err)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
	res.print(os.Stdout)
}

type matrix struct {
	gateways  []gateway.Definition
	workloads []Workload
	conns     []int
	rounds    int
	duration  time.Duration
	logDir    string
}

func (m matrix) run(ctx context.Context) (Result, error) {
	res := Result{Started: time.Now(), CPUs: runtime.NumCPU(), Go: runtime.Version(), Duration: m.duration.String()}
	workers, err := startWorkers(ctx)
	if err != nil {
		return res, err
	}
	defer workers.stop()
	for round := range m.rounds {
		cells, err := m.sweep(ctx, direct, round, workers, workers.plain, nil, nil)
		res.Cells = append(res.Cells, cells...)
		if err != nil {
			return res, err
		}
		for _, def := range m.gateways {
			cells, err := m.one(ctx, def, round, workers)
			res.Cells = append(res.Cells, cells...)
			if err != nil {
				return res, err
			}
		}
	}
	return res, nil
}

func (m matrix) one(ctx context.Context, def gateway.Definition, round int, workers *workers) ([]Cell, error) {
	var out io.Writer
	if m.logDir != "" {
		f, err := os.Create(filepath.Join(m.logDir, fmt.Sprintf("%s-%d.log", def.Name, round)))
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // read to the end
		out = f
	}
	if err := workers.setTiming(fakeworker.Timing{}); err != nil { // the last workload may be a slow one
		return nil, err
	}
	p, err := gateway.Start(ctx, def, workers.topology, out)
	if err != nil {
		return nil, err
	}
	defer p.Stop()
	idle, err := p.Usage()
	if err != nil {
		return nil, err
	}
	cells, err := m.sweep(ctx, def.Name, round, workers, p.URL, p, &def)
	for i := range cells {
		cells[i].IdleRSS = idle.RSS
	}
	return cells, err
}

// sweep measures all cells against one address; p and def are nil for the bare worker.
func (m matrix) sweep(ctx context.Context, name string, round int, workers *workers, url string, p *gateway.Process, def *gateway.Definition) ([]Cell, error) {
	var cells []Cell
	for _, w := range m.workloads {
		if def != nil && !def.Has(w.API) {
			continue
		}
		if err := workers.setTiming(fakeworker.Timing{Tokens: w.Tokens, Token: fakeworker.Duration(w.Token)}); err != nil {
			return cells, err
		}
		cfg := load.Config{URL: url + load.Paths[w.API], Stream: w.Stream, Tokens: w.Tokens, Rate: w.Rate}
		for n := range 64 {
			cfg.Bodies = append(cfg.Bodies, load.Body(w.API, w.Size, w.Stream, w.Tokens, n))
		}
		if p != nil {
			cfg.Header = p.Header
		}
		conns := m.conns
		if w.Conns != 0 {
			conns = []int{w.Conns}
		}
		for _, conns := range conns {
			if ctx.Err() != nil {
				return cells, ctx.Err()
			}
			c := Cell{Gateway: name, Workload: w.Name, Conns: conns, Round: round}
			cfg.Conns = conns
			if err := c.measure(ctx, cfg, m.duration, p); err != nil {
				c.Error = err.Error()
			}
			log.Printf("round %d %-26s %-15s %4d conns: %8.1f req/s, p50 %.3f ms, p99 %.3f ms, %.3f CPU s/1000, errors %v %s",
				round, name, w.Name, conns, c.Load.PerSecond, c.Load.Total.P50, c.Load.Total.P99, c.CPUPerThousand, c.Load.Errors, c.Error)
			cells = append(cells, c)
		}
	}
	return cells, nil
}

func (c *Cell) measure(ctx context.Context, cfg load.Config, d time.Duration, p *gateway.Process) error {
	cfg.Duration = max(d/5, 300*time.Millisecond)
	if _, err := load.Run(ctx, cfg); err != nil { // warm-up: connections, pools, page faults
		return err
	}
	var before gateway.Usage
	if p != nil {
		var err error
		if before, err = p.Usage(); err != nil {
			return err
		}
	}
	cfg.Duration = d
	var err error
	if c.Load, err = load.Run(ctx, cfg); err != nil {
		return err
	}
	average, _ := os.ReadFile("/proc/loadavg")
	c.LoadAverage = strings.Join(strings.Fields(string(average))[:3], " ")
	if p == nil {
		return nil
	}
	after, err := p.Usage()
	if err != nil {
		return err
	}
	c.CPUSeconds = (after.CPU - before.CPU).Seconds()
	if c.Load.OK > 0 {
		c.CPUPerThousand = c.CPUSeconds / float64(c.Load.OK) * 1000
	}
	c.RSS, c.PeakRSS, c.Threads = after.RSS, after.PeakRSS, after.Threads
	return nil
}

// workers is the fakeworker process.
type workers struct {
	cmd      *exec.Cmd
	control  string
	topology gateway.Topology
	plain    string
}

func startWorkers(ctx context.Context) (*workers, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := gateway.FreePort()
	if err != nil {
		return nil, err
	}
	w := &workers{control: fmt.Sprintf("http://127.0.0.1:%d", port)}
	w.cmd = exec.Command(filepath.Join(filepath.Dir(self), "fakeworker"),
		"-prefill=1", "-decode=1", "-plain=1", "-port=0", "-control="+strings.TrimPrefix(w.control, "http://"))
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	w.cmd.Stderr = os.Stderr
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w (build it beside this program: go build -o bin/ ./cmd/...)", err)
	}
	var infos []fakeworker.WorkerInfo
	if err := json.NewDecoder(stdout).Decode(&infos); err != nil {
		w.stop()
		return nil, fmt.Errorf("fakeworker did not start: %w", err)
	}
	for _, info := range infos {
		e := gateway.Endpoint{Addr: info.Addr, BootstrapPort: info.BootstrapPort}
		switch info.Role {
		case fakeworker.Prefill:
			w.topology.Prefill = append(w.topology.Prefill, e)
		case fakeworker.Decode:
			w.topology.Decode = append(w.topology.Decode, e)
		case fakeworker.Plain:
			w.plain = e.URL()
		}
	}
	return w, nil
}

func (w *workers) setTiming(t fakeworker.Timing) error {
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	req, err := http.NewRequest("PUT", w.control+"/timing", strings.NewReader(string(b)))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("fakeworker: set timing: %s", resp.Status)
	}
	return nil
}

func (w *workers) stop() {
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	_ = w.cmd.Wait()
}

// print writes one Markdown table per workload: the median of the rounds, with
// the least and the greatest in brackets.
func (r Result) print(w io.Writer) {
	type key struct {
		workload string
		conns    int
		gateway  string
	}
	groups := map[key][]Cell{}
	var order []key
	for _, c := range r.Cells {
		k := key{c.Workload, c.Conns, c.Gateway}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], c)
	}
	for _, wl := range workloads {
		if !slices.ContainsFunc(order, func(k key) bool { return k.workload == wl.Name }) {
			continue
		}
		fmt.Fprintf(w, "\n### %s: %s, prompt %d B, stream %v, %d token(s)", wl.Name, wl.API, wl.Size, wl.Stream, wl.Tokens)
		if wl.Token > 0 {
			fmt.Fprintf(w, " every %v", wl.Token)
		}
		if wl.Rate > 0 {
			fmt.Fprintf(w, ", open loop at %.0f req/s", wl.Rate)
		}
		fmt.Fprint(w, "\n\n| conns | gateway | req/s | CPU s / 1000 req | p50 ms | p99 ms | TTFT p50 ms | gap p99 ms | added p50 ms | added p99 ms | RSS MiB | errors |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
		for _, conns := range connsOf(r.Cells, wl.Name) {
			for _, k := range order {
				if k.workload != wl.Name || k.conns != conns {
					continue
				}
				g, base := groups[k], groups[key{wl.Name, conns, direct}]
				stat := func(format string, f func(Cell) float64) string {
					var v []float64
					for _, c := range g {
						v = append(v, f(c))
					}
					return spread(format, v)
				}
				added := func(f func(Cell) float64) string {
					if k.gateway == direct || len(base) != len(g) {
						return "–"
					}
					var v []float64
					for i, c := range g {
						v = append(v, f(c)-f(base[i]))
					}
					return spread("%.2f", v)
				}
				cpu, rss, gap := "–", "–", "–"
				if wl.Stream {
					gap = stat("%.2f", func(c Cell) float64 { return c.Load.Gap.P99 })
				}
				if k.gateway != direct {
					cpu = stat("%.3f", func(c Cell) float64 { return c.CPUPerThousand })
					rss = stat("%.0f", func(c Cell) float64 { return float64(c.RSS) / (1 << 20) })
				}
				errs := 0
				for _, c := range g {
					for _, n := range c.Load.Errors {
						errs += n
					}
				}
				p50 := func(c Cell) float64 { return c.Load.Total.P50 }
				p99 := func(c Cell) float64 { return c.Load.Total.P99 }
				fmt.Fprintf(w, "| %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %d |\n", conns, k.gateway,
					stat("%.0f", func(c Cell) float64 { return c.Load.PerSecond }), cpu,
					stat("%.2f", p50), stat("%.2f", p99), stat("%.2f", func(c Cell) float64 { return c.Load.TTFT.P50 }), gap,
					added(p50), added(p99), rss, errs)
			}
		}
	}
}

func connsOf(cells []Cell, workload string) []int {
	var conns []int
	for _, c := range cells {
		if c.Workload == workload && !slices.Contains(conns, c.Conns) {
			conns = append(conns, c.Conns)
		}
	}
	return conns
}

func spread(format string, v []float64) string {
	slices.Sort(v)
	mid := fmt.Sprintf(format, v[len(v)/2])
	if len(v) == 1 {
		return mid
	}
	return fmt.Sprintf("%s ("+format+"–"+format+")", mid, v[0], v[len(v)-1])
}
