package cli

import (
	"context"
	"encoding/json"
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
		Long: "Starts prefill and decode ranks as processes of their own, carries a room between them, and strikes it with each fault at each moment on each side.\n" +
			exitCodes,
		Example: "  kvferry drill --only p-killed@in-flight\n  kvferry drill --only abort,d-stopped --repeat 20 --json\n  kvferry drill --list",
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	fl := c.Flags()
	fl.StringSliceVar(&f.only, "only", nil, "drill these alone: `FAULT`, or p-FAULT or d-FAULT for one side, each with @MOMENT or without; by commas")
	fl.IntVar(&f.repeat, "repeat", 1, "runs of each cell")
	fl.IntVar(&f.jobs, "jobs", 4, "runs at a time")
	fl.Uint64Var(&f.seed, "seed", 1, "decides what is left to chance")
	fl.BoolVar(&f.json, "json", false, "print one JSON object for each cell")
	fl.BoolVar(&f.list, "list", false, "print the cells, those without meaning with the reason, and drill nothing")
	fl.BoolVar(&f.verbose, "verbose", false, "print the ranks' last log lines for a cell that is not ok")
	return c
}

// newDrillRank is what the drill starts.
func newDrillRank() *cobra.Command {
	return &cobra.Command{
		Use: "drill-rank", Short: "Run one rank for a drill, driven by JSON lines", Args: noArgs, Hidden: true,
		Long: "Is started by kvferry drill. Reads a setup and orders from standard input and ends with it.\n" + exitCodes, Example: "  kvferry drill",
		RunE: func(c *cobra.Command, _ []string) error {
			return drill.Serve(context.WithoutCancel(c.Context()), c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
}

func (f *drillFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	cells, err := drill.Select(drill.Matrix(), f.only)
	if err != nil {
		return usagef("flag --only: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	bad := 0
	results := drill.Run(ctx, drill.Options{Self: []string{self, "drill-rank"}, Cells: cells, Repeat: f.repeat, Seed: f.seed, Jobs: f.jobs, Progress: func(r drill.Result) {
		if f.json {
			_ = json.NewEncoder(stdout).Encode(r)
		} else {
			fmt.Fprintf(stdout, "%-40s %v %v %v %v\n", r.Cell, r.OK, r.Detect.P50, r.Client.P50, r.Release.P50)
			for _, p := range r.Problems {
				fmt.Fprintln(stdout, "     ", p)
			}
			if r.Retries > 0 {
				fmt.Fprintf(stdout, "  again: %d %.150q\n", r.Retries, r.Again)
			}
			if f.verbose {
				fmt.Fprint(stderr, r.Logs)
			}
		}
		if !r.OK {
			bad++
		}
	}})
	if bad > 0 {
		return fmt.Errorf("%d of %d cells are not ok", bad, len(results))
	}
	return ctx.Err()
}
