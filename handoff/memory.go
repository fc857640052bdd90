package handoff

import (
	"errors"
	"fmt"

	"github.com/kvferry/kvferry/transfer"
)

// Buffer is a range of memory in equal items: pages of a KV region, aux slots, items of a state component. Its length is a multiple of Item.
type Buffer struct {
	Mem  []byte
	Item int // bytes
}

func (b Buffer) items() int { return len(b.Mem) / b.Item }

// Memory is what a rank registers. It must not move, and must stay valid until the rank is closed. The order of KV is that of the geometry:
// K of each layer of the rank's stage, then V of each.
type Memory struct {
	KV    []Buffer // all with the same number of pages
	Aux   []Buffer // all with the same number of slots; may be empty
	State [][]Buffer
}

// ErrMemory reports memory that can't be registered as it is described.
var ErrMemory = errors.New("invalid memory")

// memory is a rank's checked memory, on decode with the engine's regions.
type memory struct {
	Memory
	pages, auxSlots, slots int
	kv, aux                []transfer.Region
	state                  [][]transfer.Region
}

// measure checks m and counts its items.
func measure(m Memory) (*memory, error) {
	if len(m.KV) == 0 {
		return nil, fmt.Errorf("%w: no KV region", ErrMemory)
	}
	mem := &memory{Memory: m}
	count := func(what string, bs []Buffer, same bool) (int, error) {
		n := 0
		for i, b := range bs {
			if b.Item < 1 || len(b.Mem) == 0 || len(b.Mem)%b.Item != 0 {
				return 0, fmt.Errorf("%w: %s %d: %d bytes in items of %d", ErrMemory, what, i, len(b.Mem), b.Item)
			}
			if same && i > 0 && b.items() != n {
				return 0, fmt.Errorf("%w: %s %d has %d items, the first has %d", ErrMemory, what, i, b.items(), n)
			}
			n = max(n, b.items())
		}
		mem.slots = max(mem.slots, n)
		return n, nil
	}
	var err error
	if mem.pages, err = count("KV region", m.KV, true); err != nil {
		return nil, err
	}
	if mem.auxSlots, err = count("aux region", m.Aux, true); err != nil {
		return nil, err
	}
	for i, component := range m.State {
		if _, err := count(fmt.Sprintf("region of state component %d,", i), component, true); err != nil {
			return nil, err
		}
	}
	return mem, nil
}

// stateSlots is the number of items of a state component.
func (m *memory) stateSlots(i int) int {
	if i >= len(m.State) || len(m.State[i]) == 0 {
		return 0
	}
	return m.State[i][0].items()
}

// check refuses an aux slot or state items that are not there. need: a rank with aux regions must name a slot.
func (m *memory) check(aux int, state [][]int32, need bool) error {
	low := -1
	if need && m.auxSlots > 0 {
		low = 0
	}
	if aux < low || aux >= max(m.auxSlots, low+1) {
		return fmt.Errorf("%w: aux slot %d, want %d to %d", ErrMemory, aux, low, m.auxSlots-1)
	}
	if len(state) > len(m.State) {
		return fmt.Errorf("%w: %d state components, want at most %d", ErrMemory, len(state), len(m.State))
	}
	for i, list := range state {
		for _, s := range list {
			if s < 0 || int(s) >= m.stateSlots(i) {
				return fmt.Errorf("%w: item %d of state component %d, want 0 to %d", ErrMemory, s, i, m.stateSlots(i)-1)
			}
		}
	}
	return nil
}

// register makes decode's memory known to the engine.
func register(e transfer.Engine, m Memory) (*memory, error) {
	mem, err := measure(m)
	if err != nil {
		return nil, err
	}
	all := func(bs []Buffer) (rs []transfer.Region, err error) {
		for _, b := range bs {
			r, err := e.Register(b.Mem, b.Item)
			if err != nil {
				return rs, fmt.Errorf("register %d bytes: %w", len(b.Mem), err)
			}
			rs = append(rs, r)
		}
		return rs, nil
	}
	if mem.kv, err = all(m.KV); err != nil {
		return nil, err
	}
	if mem.aux, err = all(m.Aux); err != nil {
		return nil, err
	}
	for _, component := range m.State {
		rs, err := all(component)
		if err != nil {
			return nil, err
		}
		mem.state = append(mem.state, rs)
	}
	return mem, nil
}
