package drill

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/tcp"
)

// engineKind is an engine that rank processes can use.
type engineKind struct {
	name string
	make func(ctx context.Context, s Setup) (transfer.Engine, error)
}

var engines = []engineKind{
	{"tcp", func(ctx context.Context, s Setup) (transfer.Engine, error) {
		return tcp.New(ctx, tcp.Config{Bind: s.Bind, Port: s.Name, DataPort: s.Data, Advertise: s.Advertise, AdvertisePort: s.Name, AdvertiseDataPort: s.Data})
	}},
}

// Engines are the names of the engines.
func Engines() (names []string) {
	for _, e := range engines {
		names = append(names, e.name)
	}
	return names
}

func engineOf(name string) (engineKind, error) {
	i := slices.IndexFunc(engines, func(e engineKind) bool { return e.name == name })
	if i < 0 {
		return engineKind{}, fmt.Errorf("engine %q, want one of %q", name, Engines())
	}
	return engines[i], nil
}
