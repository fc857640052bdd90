package node

import (
	"container/heap"
	"time"

	"github.com/kvferry/kvferry/room"
)

// A letter is a message to a native peer that is sent again until the peer acknowledges it: after firstRepeat, then at twice the pause each
// time, at most lastRepeat, and at once when a broken connection to the same instance is back. It is given up with the peer, or when the
// tombstone that it could still meet has expired.
const (
	firstRepeat = 200 * time.Millisecond
	lastRepeat  = 2 * time.Second
)

type letter struct {
	room  room.ID
	peer  *peer
	act   Action
	pause time.Duration
	until time.Time
}

// mail sends a message that is to be acknowledged; build makes it with its number.
func (c *core) mail(p *peer, id room.ID, build func(seq uint64) Action) {
	c.mails++
	l := &letter{room: id, peer: p, act: build(c.mails), pause: firstRepeat, until: c.now.Add(TombstoneLife)}
	c.letters[c.mails] = l
	p.letters.add(c.mails)
	c.do(l.act)
	c.repeatLater(c.mails, l)
}

func (c *core) repeatLater(seq uint64, l *letter) {
	c.seq++
	heap.Push(&c.timers, timer{at: c.now.Add(l.pause).UnixNano(), seq: c.seq, kind: timerRepeat, stamp: seq})
}

// repeat is what a letter's timer does.
func (c *core) repeat(seq uint64) {
	l := c.letters[seq]
	if l == nil {
		return
	}
	if !c.now.Before(l.until) {
		c.answered(seq)
		return
	}
	if l.peer.up {
		c.do(l.act)
	}
	l.pause = min(2*l.pause, lastRepeat)
	c.repeatLater(seq, l)
}

// resend sends again what a connection may have lost.
func (c *core) resend(p *peer) {
	for _, seq := range p.letters.list {
		c.do(c.letters[seq].act)
	}
}

// answered forgets a letter.
func (c *core) answered(seq uint64) {
	if l := c.letters[seq]; l != nil {
		l.peer.letters.remove(seq)
		delete(c.letters, seq)
	}
}

// receipt is a peer's word that a letter has come.
func (c *core) receipt(ev ReceiptHeard) {
	if l := c.letters[ev.Seq]; l != nil && l.room == ev.Room {
		c.answered(ev.Seq)
	}
}

// unmail gives up everything that was to reach a peer.
func (c *core) unmail(p *peer) {
	for _, seq := range p.letters.list {
		delete(c.letters, seq)
	}
	p.letters = set[uint64]{}
}
