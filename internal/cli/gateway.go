package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kvferry/kvferry/gateway"
	"github.com/kvferry/kvferry/registry"
	"github.com/kvferry/kvferry/room"
)

type gatewayFlags struct {
	logging
	listen          string
	prefill, decode []string
	registry, token string
	maxBody         int64
	retries         int
}

func newGateway() *cobra.Command {
	var f gatewayFlags
	c := &cobra.Command{
		Use: "gateway", Short: "Run the gateway in front of prefill and decode workers", Args: noArgs,
		Long:    "Turns each request into two legs, one to a prefill and one to a decode worker, kvferry's or SGLang's.\nWhen it serves, it prints one JSON line with its address.\n" + exitCodes,
		Example: "  kvferry gateway --listen 127.0.0.1:8000 --prefill http://127.0.0.1:8001@8998 --decode http://127.0.0.1:8002\n  kvferry gateway --registry http://127.0.0.1:7900",
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	f.logging.flags(c)
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:8000", "`ADDR` of the API")
	c.Flags().StringArrayVar(&f.prefill, "prefill", nil, "prefill worker, `URL@BOOTSTRAP`: BOOTSTRAP is HOST:PORT or a port on the URL's host; repeat for more")
	c.Flags().StringArrayVar(&f.decode, "decode", nil, "decode worker, `URL`; repeat for more")
	c.Flags().StringVar(&f.registry, "registry", "", "`URL` of the registry that workers are found through, beside those that are named")
	c.Flags().StringVar(&f.token, "registry-token", "", "bearer token for it")
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
	if f.registry != "" {
		remote := &registry.Remote{URL: f.registry, Token: f.token, Log: log}
		eg.Go(func() error { return remote.Watch(gctx, feed(g, cfg.Prefill, cfg.Decode)) })
	}
	err = eg.Wait()
	g.Close()
	return err
}

// feed gives a gateway the usable instances of each snapshot, beside the workers that were named.
func feed(g *gateway.Gateway, prefill, decode []gateway.Worker) func(registry.Snapshot) {
	return func(s registry.Snapshot) {
		p, d := slices.Clone(prefill), slices.Clone(decode)
		for _, i := range s.Instances {
			w := gateway.Worker{URL: i.URL, Bootstrap: i.Bootstrap, FreePages: i.Load.FreePages}
			switch {
			case !i.Usable():
			case i.Side == room.Decode:
				d = append(d, w)
			case i.Bootstrap != "":
				p = append(p, w)
			}
		}
		g.Update(p, d)
	}
}
