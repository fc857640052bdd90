package sim

import "slices"

// Shrink cuts the operations of a failing world down to some without any one of which it no longer breaks the same rule (ddmin, in at most
// limit runs), and returns that world. A world that does not fail is returned as it is.
func Shrink(cfg Config, limit int) Config {
	cfg.Trace = false
	first := Run(cfg)
	if len(first.Violations) == 0 {
		return cfg
	}
	rule := first.Violations[0].Rule
	fails := func(ops []Op) bool {
		limit--
		c := cfg
		c.Ops = ops
		r := Run(c)
		return len(r.Violations) > 0 && r.Violations[0].Rule == rule
	}
	parts := 2
	for len(cfg.Ops) > 0 && limit > 0 {
		size := (len(cfg.Ops) + parts - 1) / parts
		cut := false
		for at := 0; at < len(cfg.Ops) && limit > 0; {
			less := slices.Delete(slices.Clone(cfg.Ops), at, min(at+size, len(cfg.Ops)))
			if fails(less) {
				cfg.Ops, cut = less, true
				continue
			}
			at += size
		}
		switch {
		case size > 1:
			parts = min(2*parts, len(cfg.Ops))
		case !cut:
			return cfg
		default: // once more over single operations
		}
		parts = max(parts, 1)
	}
	return cfg
}
