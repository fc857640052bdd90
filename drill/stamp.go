package drill

import (
	"encoding/binary"
	"fmt"

	"github.com/kvferry/kvferry/kvlayout"
)

// unit is how many bytes one stamp takes.
const unit = 32

// stamp says whose bytes are in a page.
type stamp struct {
	room  uint64
	life  uint64
	chunk uint32
	page  uint32 // position within the room, not within the pool
}

// guard is what pages hold that belong to no room.
var guard = stamp{life: 0x6775617264}

// shape is how stamps lie in a rank's pages: token, head, units of a head.
type shape struct {
	tokens, heads, first, units int
}

func shapeOf(g kvlayout.Geometry) shape {
	heads := max(1, g.KVHeads/g.TP)
	return shape{tokens: g.PageSize, heads: heads, first: g.TPRank * heads, units: g.HeadBytes / unit}
}

// at is the stamp's word of position: the same on every rank that holds these bytes.
func at(region, token, head, k int) uint64 {
	return uint64(region)<<48 | uint64(token)<<32 | uint64(head)<<16 | uint64(k)
}

func (s shape) each(b []byte, region int, f func(b []byte, where uint64) error) error {
	for t := range s.tokens {
		for h := range s.heads {
			for k := range s.units {
				i := ((t*s.heads+h)*s.units + k) * unit
				if err := f(b[i:i+unit], at(region, t, s.first+h, k)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// write stamps one page of one region.
func (s shape) write(b []byte, region int, w stamp) {
	_ = s.each(b, region, func(b []byte, where uint64) error { // f has no error
		binary.LittleEndian.PutUint64(b, w.room)
		binary.LittleEndian.PutUint64(b[8:], w.life)
		binary.LittleEndian.PutUint32(b[16:], w.chunk)
		binary.LittleEndian.PutUint32(b[20:], w.page)
		binary.LittleEndian.PutUint64(b[24:], where)
		return nil
	})
}

// check finds the first bytes of a page that are not w's.
func (s shape) check(b []byte, region int, w stamp) error {
	return s.each(b, region, func(b []byte, where uint64) error {
		got := stamp{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint32(b[16:]), binary.LittleEndian.Uint32(b[20:])}
		if place := binary.LittleEndian.Uint64(b[24:]); got != w || place != where {
			return fmt.Errorf("foreign stamp in region %d: room %d life %x chunk %d page %d place %x, want room %d life %x chunk %d page %d place %x",
				region, got.room, got.life, got.chunk, got.page, place, w.room, w.life, w.chunk, w.page, where)
		}
		return nil
	})
}
