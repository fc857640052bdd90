// Package cli is kvferry's command line: one file per command. Flags and environment are read here and nowhere else.
//
// Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, and those of
// room.Code.ExitCode where a request or instance failed with a cause.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/room"
)

// Version is set when the binary is built.
var Version = "devel"

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a wrong flag or argument.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Run runs the command line and returns the exit code.
func Run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, args, os.Stdout, os.Stderr)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(stderr, "kvferry:", err) // nothing is left to report to
	var usage usageError
	var cause room.Cause
	switch {
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command"):
		_, _ = fmt.Fprintln(stderr, "Run 'kvferry --help' for the commands and 'kvferry COMMAND --help' for their flags.")
		return exitUsage
	case errors.As(err, &cause):
		return cause.Code.ExitCode()
	}
	return exitFailed
}

const exitCodes = `
Exit codes: 0 done; 1 failed; 2 wrong usage; 10 aborted; 11 a peer failed; 12 the KV did not arrive whole; 13 no progress;
14 incompatible pair; 16 no capacity; 17 not reachable or leaving; 70 a bug.`

func newRoot() *cobra.Command {
	c := &cobra.Command{
		Use:           "kvferry",
		Short:         "Carries the KV cache of a request from prefill to decode workers, whole or with a reason",
		Long:          "kvferry carries the KV cache of a request from the worker that prefilled it to the worker that decodes it:\neither it arrives whole, or everyone who waits for it knows why not, at once.\n" + exitCodes,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.AddCommand(newUp(), newWorker(room.Prefill), newWorker(room.Decode), newGateway(), newRegistry(), newDrill(), newDrillRank(), newVersion())
	return c
}

// noArgs refuses arguments as wrong usage.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no arguments, got %q", c.CommandPath(), args)
	}
	return nil
}

// logging is the flags of the log.
type logging struct {
	level string
	json  bool
}

func (l *logging) flags(c *cobra.Command) {
	c.Flags().StringVar(&l.level, "log", "info", "log level: debug, info, warn or error")
	c.Flags().BoolVar(&l.json, "log-json", false, "log as JSON lines")
}

func (l *logging) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, usagef("flag --log: %q, want debug, info, warn or error", l.level)
	}
	o := &slog.HandlerOptions{Level: level}
	if l.json {
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return slog.New(slog.NewTextHandler(w, o)), nil
}
