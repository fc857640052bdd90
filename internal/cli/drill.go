package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/drill"
)

type drillFlags struct {
	only         []string
	repeat, jobs int
	seed         uint64
	json, list   bool
	verbose      bool
}

func newDrill() *cobra.Command {
	var f drillFlags
	c := &cobra.Command{
		Use: "drill", Short: "Break things on purpose, and see that everybody who waits is told", Args: noArgs,
		Long: "Starts prefill and decode ranks as processes of their own, brings a room between them to a moment of its life, strikes it with a fault, and looks at what\n" +
			"everybody comes to: each fault at each moment on each side. A cell is ok when every side and the client have the verdict that they must have, every byte of\n" +
			"every page is its owner's, all pages are back, all tables are empty, and the next rooms work. Times are measured beside it and decide nothing.\n" +
			"Exit codes: 0 every cell is ok; 1 some are not, or the drill was stopped; 2 wrong usage.",
		Example: "  kvferry drill --only p-killed,d-stopped@in-flight\n  kvferry drill --repeat 20 --json > drill.jsonl\n  kvferry drill --list",
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	fl := c.Flags()
	fl.StringSliceVar(&f.only, "only", nil, "drill these alone, by commas: `FAULT`, or p-FAULT or d-FAULT for one side; @MOMENT may follow")
	fl.IntVar(&f.repeat, "repeat", 1, "runs of each cell")
	fl.IntVar(&f.jobs, "jobs", 4, "runs at a time")
	fl.Uint64Var(&f.seed, "seed", 1, "decides what is left to chance: how many bytes have arrived")
	fl.BoolVar(&f.json, "json", false, "print one JSON object for each cell")
	fl.BoolVar(&f.list, "list", false, "print the cells, those without meaning with the reason, and drill nothing")
	fl.BoolVar(&f.verbose, "verbose", false, "print the ranks' last log lines for a cell that is not ok")
	err := c.RegisterFlagCompletionFunc("only", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, x := range drill.Faults() {
			names = append(names, x[0], "p-"+x[0], "d-"+x[0])
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag is defined above
	}
	return c
}

// newDrillRank is what the drill starts.
func newDrillRank() *cobra.Command {
	return &cobra.Command{
		Use: "drill-rank", Short: "Run one rank for a drill, driven by JSON lines", Args: noArgs, Hidden: true,
		Long:    "Is started by kvferry drill. Reads a setup and then orders from standard input, and ends with it.\n" + exitCodes,
		Example: "  kvferry drill",
		RunE: func(c *cobra.Command, _ []string) error {
			// A signal to the whole group is the drill's business, which ends its ranks.
			return drill.Serve(context.WithoutCancel(c.Context()), c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
}

func (f *drillFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	for _, n := range []struct {
		name   string
		v, max int
	}{{"--repeat", f.repeat, 100_000}, {"--jobs", f.jobs, 64}} {
		if n.v < 1 || n.v > n.max {
			return usagef("flag %s: %d, want 1 to %d", n.name, n.v, n.max)
		}
	}
	cells, err := drill.Select(drill.Matrix(), f.only)
	if err != nil {
		return usagef("flag --only: %w", err)
	}
	if f.list {
		return f.print(stdout, cells)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	t := &drillTable{out: stdout, progress: stderr, json: f.json, cells: cells, verbose: f.verbose}
	if !isTerminal(stderr) {
		t.progress = io.Discard
	}
	t.begin()
	drill.Run(ctx, drill.Options{Self: []string{self, "drill-rank"}, Binary: self, Cells: cells, Repeat: f.repeat, Seed: f.seed, Jobs: f.jobs, Progress: t.add})
	t.end(stderr)
	switch {
	case ctx.Err() != nil:
		return errors.New("drill: stopped before it was over")
	case t.bad > 0:
		return fmt.Errorf("drill: %d of %d cells are not ok", t.bad, t.done)
	}
	return nil
}

// print lists cells.
func (f *drillFlags) print(out io.Writer, cells []drill.Cell) error {
	enc := json.NewEncoder(out)
	last := ""
	for _, c := range cells {
		if f.json {
			if err := enc.Encode(c); err != nil {
				return err
			}
			continue
		}
		if c.Fault != last {
			last = c.Fault
			if _, err := fmt.Fprintf(out, "\n%s: %s\n", c.Fault, drill.About(c.Fault)); err != nil {
				return err
			}
		}
		what := "drilled"
		if c.NA != "" {
			what = "n/a: " + c.NA
		}
		if _, err := fmt.Fprintf(out, "  %s  %-11s %-4s %s\n", c.Side, c.Moment, c.Engine, what); err != nil {
			return err
		}
	}
	if f.json {
		return nil
	}
	_, err := fmt.Fprintf(out, "\n%s\n", summary(cells))
	return err
}

// isTerminal reports a device that shows what is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	s, err := f.Stat()
	return err == nil && s.Mode()&os.ModeCharDevice != 0
}
