package node

import (
	"slices"
	"time"

	"github.com/kvferry/kvferry/room"
)

// doubt is a life of a room whose bytes may still land at a decode rank, however long ago it ended: its silence is never confirmed. It is
// forgotten with the registration of the memory that it is about.
type doubt struct {
	room              room.ID
	epoch             room.Epoch // zero: not known
	session, endpoint string
}

// suspect notes that bytes for a destination may still land. Of a room's doubts the newest MaxTombstones are kept.
func (n *Prefill) suspect(r *sendRoom, d *destination) {
	r.poisoned = true
	if d.doubt {
		return
	}
	d.doubt = true
	if _, ok := n.sessions[d.Session]; !ok {
		return // that memory is gone
	}
	if len(n.doubts) >= MaxTombstones {
		n.doubts = n.doubts[1:]
	}
	n.doubts = append(n.doubts, doubt{r.id, d.Epoch, d.Session, d.Endpoint})
}

// still reports that nothing of this rank is under way, or may still land, for a life of a room at an endpoint; a zero epoch means any.
func (n *Prefill) still(id room.ID, endpoint string, e room.Epoch) bool {
	meant := func(x room.Epoch) bool { return e == 0 || x == 0 || x == e }
	if r := n.rooms[id]; r != nil {
		for _, w := range r.outstanding {
			if w.dst.Endpoint == endpoint && meant(w.dst.Epoch) {
				return false
			}
		}
	}
	return !slices.ContainsFunc(n.doubts, func(d doubt) bool { return d.room == id && d.endpoint == endpoint && meant(d.epoch) })
}

// promises remembers, by the epochs of rooms and for as long as a tombstone lives, for which lives this rank has said that it writes nothing
// more. It keeps its word when their metadata comes again, in whatever state the number is by then.
type promises struct {
	at    map[room.Epoch]promise
	queue []room.Epoch
}

type promise struct {
	until time.Time
	done  bool // it was Success
}

func (s *promises) add(e room.Epoch, done bool, now time.Time) {
	s.expire(now)
	if _, ok := s.at[e]; ok {
		return
	}
	if len(s.queue) >= MaxTombstones {
		s.drop()
	}
	s.at[e] = promise{now.Add(TombstoneLife), done}
	s.queue = append(s.queue, e)
}

func (s *promises) get(e room.Epoch, now time.Time) (promise, bool) {
	s.expire(now)
	p, ok := s.at[e]
	return p, ok
}

func (s *promises) drop() {
	delete(s.at, s.queue[0])
	s.queue = s.queue[1:]
}

func (s *promises) expire(now time.Time) {
	for len(s.queue) > 0 && !s.at[s.queue[0]].until.After(now) {
		s.drop()
	}
	if len(s.queue) == 0 {
		s.queue = nil // let the array go
	}
}
