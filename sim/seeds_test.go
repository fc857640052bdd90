//go:build !race

package sim

import "testing"

func TestSeeds(t *testing.T) {
	if *seeds == 1 {
		cfg := FromSeed(*from)
		cfg.Trace = true
		for _, line := range Run(cfg).Log {
			t.Log(line)
		}
	}
	sweep(t, *from, *seeds)
}
