package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kvferry/kvferry/gateway"
)

type gatewayFlags struct {
	logging
	listen          string
	prefill, decode []string
	maxBody         int64
	retries         int
}

func newGateway() *cobra.Command {
	var f gatewayFlags
	c := &cobra.Command{
		Use: "gateway", Short: "Run the gateway in front of prefill and decode workers", Args: noArgs,
		Long:    "Turns each request into two legs, one to a prefill and one to a decode worker, kvferry's or SGLang's.\nWhen it serves, it prints one JSON line with its address.\n" + exitCodes,
		Example: "  kvferry gateway --listen 127.0.0.1:8000 --prefill http://127.0.0.1:8001@8998 --decode http://127.0.0.1:8002",
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	f.logging.flags(c)
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:8000", "`ADDR` of the API")
	c.Flags().StringArrayVar(&f.prefill, "prefill", nil, "prefill worker, `URL@BOOTSTRAP`: BOOTSTRAP is HOST:PORT or a port on the URL's host; repeat for more")
	c.Flags().StringArrayVar(&f.decode, "decode", nil, "decode worker, `URL`; repeat for more")
	c.Flags().Int64Var(&f.maxBody, "max-body", 16<<20, "bytes of a request's body")
	c.Flags().IntVar(&f.retries, "retries", 1, "attempts on another pair after one that failed before its first byte; negative: none")
	return c
}

// workers reads the candidates of a role.
func workers(flag string, texts []string, bootstrap bool) (list []gateway.Worker, err error) {
	for _, t := range texts {
		w, err := gateway.ParseWorker(t)
		if err != nil {
			return nil, usagef("flag %s: %w", flag, err)
		}
		if bootstrap && w.Bootstrap == "" {
			return nil, usagef("flag %s: %q has no bootstrap address, want URL@BOOTSTRAP", flag, t)
		}
		list = append(list, w)
	}
	return list, nil
}

func (f *gatewayFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	log, err := f.logger(stderr)
	if err != nil {
		return err
	}
	cfg := gateway.Config{MaxBody: f.maxBody, Retries: f.retries, Log: log}
	if cfg.Prefill, err = workers("--prefill", f.prefill, true); err != nil {
		return err
	}
	if cfg.Decode, err = workers("--decode", f.decode, false); err != nil {
		return err
	}
	g, err := gateway.New(cfg)
	if err != nil {
		return err
	}
	l, err := listen(ctx, "--listen", f.listen)
	if err != nil {
		return err
	}
	eg, gctx := errgroup.WithContext(ctx)
	serve(gctx, eg, l, g)
	if err := json.NewEncoder(stdout).Encode(map[string]string{"event": "ready", "side": "gateway", "url": "http://" + l.Addr().String()}); err != nil {
		return errors.Join(err, l.Close(), eg.Wait())
	}
	err = eg.Wait()
	g.Close()
	return err
}
