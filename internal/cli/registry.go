package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kvferry/kvferry/registry"
)

func newRegistry() *cobra.Command {
	var f logging
	var addr string
	c := &cobra.Command{
		Use: "registry", Short: "Run a bootstrap server for one SGLang prefill instance", Args: noArgs,
		Long:    "Serves the routes of SGLang's bootstrap server for the ranks of one prefill instance that put themselves in.\nkvferry prefill workers serve their own and need none.\n" + exitCodes,
		Example: "  kvferry registry --listen 127.0.0.1:8998",
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := f.logger(c.ErrOrStderr()); err != nil {
				return err
			}
			return runRegistry(c.Context(), addr, c.OutOrStdout())
		},
	}
	f.flags(c)
	c.Flags().StringVar(&addr, "listen", "127.0.0.1:8998", "`ADDR` to serve on")
	return c
}

func runRegistry(ctx context.Context, addr string, stdout io.Writer) error {
	l, err := listen(ctx, "--listen", addr)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	serve(gctx, g, l, registry.NewBootstrap(nil, nil).Handler())
	if err := json.NewEncoder(stdout).Encode(map[string]string{"event": "ready", "side": "registry", "url": "http://" + l.Addr().String()}); err != nil {
		return errors.Join(err, l.Close(), g.Wait())
	}
	return g.Wait()
}
