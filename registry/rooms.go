package registry

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Bounds of the map from rooms to data-parallel ranks.
const (
	roomLife   = 120 * time.Second // as upstream
	maxRooms   = 1 << 17           // more than 1,000 rooms a second for roomLife; the oldest entries give way
	maxQueried = 1 << 16           // rooms of one question
)

// roomRanks remembers for a while which data-parallel rank serves a room.
type roomRanks struct {
	ranks map[room.ID]roomEntry
	order []roomEntry // by age
}

type roomEntry struct {
	id   room.ID
	rank int
	at   time.Time
}

func (t *roomRanks) set(id room.ID, rank int, now time.Time) {
	t.expire(now, maxRooms-1)
	e := roomEntry{id, rank, now}
	if t.ranks == nil {
		t.ranks = map[room.ID]roomEntry{}
	}
	t.ranks[id] = e
	t.order = append(t.order, e)
}

func (t *roomRanks) get(id room.ID) (int, bool) {
	e, ok := t.ranks[id]
	return e.rank, ok
}

// expire drops what is too old, and the oldest beyond keep. A room that was set again has a newer entry than its first place in order.
func (t *roomRanks) expire(now time.Time, keep int) {
	n := 0
	for n < len(t.order) && (now.Sub(t.order[n].at) > roomLife || len(t.order)-n > keep) {
		if e := t.order[n]; t.ranks[e.id] == e {
			delete(t.ranks, e.id)
		}
		n++
	}
	t.order = t.order[n:]
	if len(t.order) == 0 {
		t.order = nil
	}
}

// parseRoomRank reads the body of POST /register_dp_rank.
func parseRoomRank(b []byte) (room.ID, int, error) {
	o, err := parseObject(b)
	if err != nil {
		return 0, 0, err
	}
	v, ok := o["bootstrap_room"]
	if !ok {
		return 0, 0, missing("bootstrap_room")
	}
	id, err := room.ParseID(unquoted(v))
	if err != nil {
		return 0, 0, fmt.Errorf("%w: field %q: %w", ErrInvalid, "bootstrap_room", err)
	}
	rank, err := o.whole("dp_rank", 0, maxAxis-1)
	return id, rank, err
}

// parseQuery reads the body of POST /query_dp_ranks.
func parseQuery(b []byte) ([]roomNumber, error) {
	o, err := parseObject(b)
	if err != nil {
		return nil, err
	}
	v, ok := o["bootstrap_rooms"]
	if !ok || string(v) == "null" {
		return nil, missing("bootstrap_rooms")
	}
	var ids []roomNumber
	if err := json.Unmarshal(v, &ids); err != nil {
		return nil, fmt.Errorf("%w: field %q: want a list of rooms: %w", ErrInvalid, "bootstrap_rooms", err)
	}
	if len(ids) > maxQueried {
		return nil, fmt.Errorf("%w: %d rooms in one question, limit %d", ErrTooLarge, len(ids), maxQueried)
	}
	return ids, nil
}

// appendRanks appends the answer to POST /query_dp_ranks, in the order asked.
func appendRanks(b []byte, ids []roomNumber, rank func(room.ID) (int, bool)) []byte {
	seen := make(map[room.ID]bool, len(ids))
	b = append(b, '{')
	for _, n := range ids {
		id := room.ID(n)
		r, ok := rank(id)
		if !ok || seen[id] {
			continue
		}
		if len(seen) > 0 {
			b = append(b, ", "...)
		}
		seen[id] = true
		b = append(b, '"')
		b = append(id.Append(b), `": `...)
		b = strconv.AppendInt(b, int64(r), 10)
	}
	return append(b, '}')
}

// parseRanks reads the answer to POST /query_dp_ranks.
func parseRanks(b []byte) (map[room.ID]int, error) {
	o, err := parseObject(b)
	if err != nil {
		return nil, err
	}
	if len(o) > maxQueried {
		return nil, fmt.Errorf("%w: %d rooms in one answer, limit %d", ErrTooLarge, len(o), maxQueried)
	}
	known := make(map[room.ID]int, len(o))
	for name := range o {
		id, err := room.ParseID(name)
		if err != nil {
			return nil, fmt.Errorf("%w: DP ranks: %w", ErrInvalid, err)
		}
		if known[id], err = o.whole(name, 0, maxAxis-1); err != nil {
			return nil, err
		}
	}
	return known, nil
}
