package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kvferry/kvferry/registry"
)

type registryFlags struct {
	logging
	listen, token string
	ttl           time.Duration
}

func newRegistry() *cobra.Command {
	var f registryFlags
	c := &cobra.Command{
		Use: "registry", Short: "Run the registry that workers and gateways find each other through", Args: noArgs,
		Long: "Keeps, in memory, which instances there are: workers register under a lease and keep it alive, gateways watch.\n" +
			"When it is restarted, the workers' own keep-alives fill it again. It is no SGLang bootstrap server: each prefill worker serves its own.\n" + exitCodes,
		Example: "  kvferry registry --listen 127.0.0.1:7900\n  kvferry prefill --registry http://127.0.0.1:7900",
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	f.logging.flags(c)
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:7900", "`ADDR` to serve on")
	c.Flags().StringVar(&f.token, "token", "", "bearer token that every write must carry")
	c.Flags().DurationVar(&f.ttl, "ttl", registry.DefaultTTL, "how long a lease lasts")
	return c
}

func (f *registryFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	if _, err := f.logger(stderr); err != nil {
		return err
	}
	store, err := registry.NewStore(f.ttl)
	if err != nil {
		return usageError{err}
	}
	l, err := listen(ctx, "--listen", f.listen)
	if err != nil {
		store.Close()
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-gctx.Done()
		store.Close() // ends the watchers, so that the server can
		return nil
	})
	serve(gctx, g, l, store.Handler(f.token))
	if err := json.NewEncoder(stdout).Encode(map[string]string{"event": "ready", "side": "registry", "url": "http://" + l.Addr().String()}); err != nil {
		return errors.Join(err, l.Close(), g.Wait())
	}
	return g.Wait()
}
