package main

import (
	"context"
	"fmt"

	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/registry"
)

// startPrefill makes a prefill rank and announces it, to the registry that this process serves or to another's.
func (p *peer) startPrefill(ctx context.Context, cfg handoff.PrefillConfig) (err error) {
	if p.prefill, err = handoff.NewPrefill(ctx, cfg); err != nil {
		return err
	}
	row := registry.RankRow{TPSize: p.tp, TPRank: p.tpRank, CPSize: 1, DPSize: 1, PPSize: p.pp, PPRank: p.ppRank, SystemDP: 1, IP: "127.0.0.1", Port: p.port(),
		PageSize: p.pageSize, DType: "auto", LoadBalance: registry.FollowRoom, Policy: registry.PolicyEarly}
	if !p.serve {
		return (&registry.Client{}).Announce(ctx, p.bootstrap, row)
	}
	l, err := p.listenBootstrap()
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	p.bootstrap = l.Addr().String()
	b := registry.NewBootstrap(nil, nil)
	serve(l, b.Handler())
	return b.Put(row)
}
