package sim

import (
	"time"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// network knows who listens where, and between which ranks nothing passes.
type network struct {
	at    map[string]*proc
	holes map[[2]int]time.Duration // by prefill and decode rank: until when
	lossy map[[2]int]bool          // a message between the two ranks was lost
}

// conn is a process's control connection to an endpoint, kept up until it is closed, as handoff's.
type conn struct {
	from   *proc
	to     string
	rng    rng
	queue  []message // while it is not up
	ses    *session  // nil: not up
	closed bool
	drop   int           // so many messages are lost
	again  time.Duration // the next message comes again after that
}

// session is one life of a connection. What is in flight arrives in order, or not at all.
type session struct {
	conn   *conn
	peer   *proc
	native bool
	flight []message
	last   time.Duration // when the newest arrives
	lost   bool
}

type message struct{ ev node.Event }

func pairOf(a, b *proc) [2]int {
	if a.side == room.Prefill {
		return [2]int{a.rank, b.rank}
	}
	return [2]int{b.rank, a.rank}
}

// hole is until when nothing passes between two processes.
func (w *world) hole(a, b *proc) time.Duration { return w.net.holes[pairOf(a, b)] }

// lose notes that a message between two ranks was lost.
func (w *world) lose(a, b *proc) {
	if w.net.lossy == nil {
		w.net.lossy = map[[2]int]bool{}
	}
	w.net.lossy[pairOf(a, b)] = true
}

func (p *proc) connect(endpoint string) {
	if p.conns[endpoint] != nil {
		p.w.violate("connections", "%v connects to %s twice", p, endpoint)
		return
	}
	c := &conn{from: p, to: endpoint, rng: newRNG(p.w.cfg.Seed, 0xc0, uint64(p.side), uint64(p.rank), uint64(p.life), uint64(len(p.order)))}
	p.conns[endpoint] = c
	p.order = append(p.order, c)
	p.w.after(c.rng.span(0, 5*time.Millisecond), c.dial)
}

// disconnect gives an endpoint up. What is queued has a moment to leave.
func (p *proc) disconnect(endpoint string) {
	c := p.conns[endpoint]
	if c == nil {
		p.w.violate("connections", "%v gives up %s, which it never connected to", p, endpoint)
		return
	}
	delete(p.conns, endpoint)
	for i, o := range p.order {
		if o == c {
			p.order = append(p.order[:i], p.order[i+1:]...)
			break
		}
	}
	c.closed = true
	if c.ses != nil && c.rng.oneIn(2) {
		c.ses.drop()
	}
	if len(c.queue) > 0 {
		if q := p.w.net.at[endpoint]; q != nil {
			p.w.lose(p, q)
		}
	}
}

// dial tries to connect.
func (c *conn) dial() {
	w, p := c.from.w, c.from
	if c.closed || p.gone || c.ses != nil {
		return
	}
	q := w.net.at[c.to]
	switch {
	case q == nil || q.gone && !q.vanished:
		p.run(func() {
			if !c.closed {
				_ = w.step(p, node.PeerRefused{Endpoint: c.to, Text: "connection refused"})
			}
		})
		w.after(c.rng.span(100*time.Millisecond, 300*time.Millisecond), c.dial)
	case q.gone || q.paused() || w.now < w.hole(p, q):
		w.after(c.rng.span(100*time.Millisecond, time.Second), c.dial)
	default:
		c.up(q)
	}
}

func (c *conn) up(q *proc) {
	s := &session{conn: c, peer: q, native: c.from.native() && q.native()}
	c.ses = s
	queue := c.queue
	c.queue = nil
	for _, m := range queue {
		s.send(m)
	}
	ev := node.PeerUp{Endpoint: c.to}
	if s.native {
		ev.Instance = q.instance
	}
	c.from.run(func() {
		if !c.closed && c.ses == s {
			_ = c.from.w.step(c.from, ev)
		}
	})
}

// send queues a message.
func (c *conn) send(m message) {
	if c.drop > 0 {
		c.drop--
		if q := c.from.w.net.at[c.to]; q != nil {
			c.from.w.lose(c.from, q)
		}
		return
	}
	if c.ses == nil {
		c.queue = append(c.queue, m)
		return
	}
	c.ses.send(m)
}

func (s *session) send(m message) {
	w := s.conn.from.w
	s.flight = append(s.flight, m)
	s.last = max(s.last, w.now+s.conn.rng.delay(200*time.Millisecond))
	w.push(s.last, s.pump)
	if w.cfg.Stutter && s.conn.rng.oneIn(6) {
		s.conn.again = s.conn.rng.delay(5*time.Second) + 1
	}
	if s.conn.again > 0 && s.native {
		d := s.conn.again
		s.conn.again = 0
		w.push(max(w.now+d, s.last), func() { // not before those that were sent before it
			if !s.conn.from.gone { // who is gone repeats nothing
				s.arrive(m)
			}
		})
	}
}

// pump delivers the first message in flight.
func (s *session) pump() {
	w := s.conn.from.w
	if len(s.flight) == 0 {
		return
	}
	if end := w.hole(s.conn.from, s.peer); w.now < end {
		w.push(end, s.pump)
		return
	}
	m := s.flight[0]
	s.flight = s.flight[1:]
	s.arrive(m)
}

func (s *session) arrive(m message) {
	if s.lost || s.peer.gone {
		return
	}
	s.peer.deliver(m.ev)
}

// drop loses what is in flight.
func (s *session) drop() {
	if len(s.flight) > 0 {
		s.conn.from.w.lose(s.conn.from, s.peer)
	}
	s.lost, s.flight = true, nil
}

// end breaks the connection, which comes back by itself. late: what is in flight still arrives.
func (c *conn) end(late bool) {
	s := c.ses
	if s == nil {
		return
	}
	w := c.from.w
	c.ses = nil
	if !late {
		s.drop()
	}
	c.from.run(func() {
		if !c.closed {
			_ = w.step(c.from, node.PeerDown{Endpoint: c.to, Text: "connection reset"})
		}
	})
	w.after(c.rng.span(5*time.Millisecond, 300*time.Millisecond), c.dial)
}

// hungUp tells the network that a process is gone: its peers see their connections end, unless its host is gone as well.
func (p *proc) hungUp() {
	for _, c := range p.order {
		c.closed = true
		if c.ses != nil && p.rng.oneIn(2) {
			c.ses.drop()
		}
	}
	if p.vanished {
		return
	}
	for _, q := range p.w.procs {
		for _, c := range q.order {
			if c.ses != nil && c.ses.peer == p {
				p.w.after(p.rng.span(0, 20*time.Millisecond), func() { c.endOf(p) })
			}
		}
	}
}

// endOf ends the connection if it is still one to p.
func (c *conn) endOf(p *proc) {
	if c.ses != nil && c.ses.peer == p {
		c.end(false)
	}
}

// hear reports which peers have shown a sign of life: whoever is reachable answers PING.
func (p *proc) hear() {
	list := append([]*conn(nil), p.order...)
	for _, c := range list {
		s := c.ses
		if s != nil && s.peer.gone && p.w.net.at[c.to] != s.peer { // the host is back and knows of no such connection
			c.end(false)
			continue
		}
		if c.closed || s == nil || s.peer.gone || s.peer.paused() || p.w.now < p.w.hole(p, s.peer) {
			continue
		}
		_ = p.w.step(p, node.PeerHeard{Endpoint: c.to, At: p.w.clock()})
	}
}
