package sim

import (
	"fmt"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// message turns a node's word to a peer into the event that the peer's dialect makes of it, and sends it.
func (p *proc) message(a node.Action) {
	to, native, ev := p.translate(a)
	if ev == nil {
		p.w.violate("actions", "%v: %T is not carried out here", p, a)
		return
	}
	c := p.conns[to]
	if c == nil {
		p.w.violate("connections", "%v sends %s to %q without a connection", p, describe(a), to)
		return
	}
	if q := p.w.net.at[to]; native && q != nil && !(q.native() && p.native()) {
		p.w.violate("foreign", "%v sends %v, which is foreign, %s", p, q, describe(a))
	}
	p.watch(a)
	c.send(message{ev})
}

// translate says to whom a message goes, whether only a native peer knows it, and what it becomes there.
func (p *proc) translate(a node.Action) (to string, native bool, ev node.Event) {
	if p.side == room.Decode {
		if to, native, ev = p.translateDecode(a); ev != nil {
			return to, native, ev
		}
	}
	switch a := a.(type) {
	case node.SendStatus:
		s := node.StatusHeard{Room: a.Room, Rank: a.Rank, Status: a.Status}
		if a.Native {
			s.Epoch, s.Cause, s.Instance, s.Seq = a.Epoch, p.told(a.Cause), p.instance, a.Seq
		}
		return a.Endpoint, a.Native, s
	case node.SendRefused:
		return a.Endpoint, true, node.StatusHeard{Room: a.Room, Epoch: a.Epoch, Rank: a.Rank, Status: room.Failed, Cause: p.told(a.Cause), Refused: true}
	case node.SendQuiescent:
		return a.Endpoint, true, node.QuiescentHeard{Room: a.Room, Epoch: a.Epoch, Rank: a.Rank, Instance: p.instance, Seq: a.Seq}
	case node.SendAck:
		return a.Endpoint, false, node.AckHeard{Room: a.Room, Rank: a.Rank, Generation: a.Generation, HasGeneration: true}
	case node.SendQueued:
		return a.Endpoint, true, node.QueuedHeard{Instance: p.instance, Rank: a.Rank, Rooms: append([]room.ID(nil), a.Rooms...)}
	case node.SendReceipt:
		return a.Endpoint, true, node.ReceiptHeard{Room: a.Room, Seq: a.Seq}
	case node.SendGoodbye:
		return a.Endpoint, true, node.GoodbyeHeard{Instance: p.instance, Cause: p.told(a.Cause)}
	default:
		return "", false, nil
	}
}

func (p *proc) translateDecode(a node.Action) (to string, native bool, ev node.Event) {
	switch a := a.(type) {
	case node.SendRegistration:
		r := node.Registration{Session: p.session, Endpoint: p.endpoint}
		if a.Native {
			r.Instance = p.instance
		}
		if q := p.w.net.at[a.Endpoint]; q != nil && p.w.cfg.barred(q.rank, p.rank) {
			r.Refused = "another layout"
		}
		return a.Endpoint, a.Native, r
	case node.SendMetadata:
		return a.Endpoint, a.Native, p.publication(a)
	case node.SendAbort:
		e := node.AbortHeard{Room: a.Room, Endpoint: p.endpoint, Generation: a.Generation, HasGeneration: a.Generation != 0}
		if a.Native { // its abort carries an epoch and no generation
			e = node.AbortHeard{Room: a.Room, Epoch: a.Epoch, Endpoint: p.endpoint, Cause: p.told(a.Cause), Seq: a.Seq}
		}
		return a.Endpoint, a.Native, e
	default:
		return "", false, nil
	}
}

// told is a cause as it arrives: code and text travel.
func (p *proc) told(c room.Cause) room.Cause {
	if c.IsZero() {
		return c
	}
	return room.NewCause(c.Code, p.side, p.endpoint, c.Text)
}

// publication is what a prefill rank reads of SendMetadata.
func (p *proc) publication(a node.SendMetadata) node.Metadata {
	m := node.Metadata{Room: a.Room, Session: p.session, Endpoint: p.endpoint, Native: a.Native, Aux: -1, Required: a.Required, Prefix: a.Prefix, Dummy: a.Dummy}
	if a.Native {
		m.Epoch = a.Epoch
	}
	q := p.w.net.at[a.Endpoint]
	l := p.leaseOf(a.Epoch)
	if q == nil || l == nil {
		p.w.violate("metadata", "%v publishes room %d to %s without a lease or a target", p, a.Room, a.Endpoint)
		return m
	}
	if (l.retired || l.idle) && !a.Dummy {
		p.w.violate("promise", "%v publishes pages of room %d that are given back", p, a.Room)
	}
	if a.Dummy {
		return m
	}
	tag := p.w.tag(l, q.rank)
	for _, n := range a.Pages {
		m.Pages = append(m.Pages, tag|int32(a.Generation)<<slotBits|n)
	}
	if a.Aux >= 0 {
		m.Aux = tag | int32(a.Generation)<<slotBits | a.Aux
	}
	return m
}

// publication is pages under the numbers that one prefill rank was told. Its index is in those numbers, above generation and page, so that
// the world knows whom a write is for even where the nodes can't.
type publication struct {
	lease  *lease
	target int
}

func (w *world) tag(l *lease, target int) int32 {
	for i, p := range w.pubs {
		if p.lease == l && p.target == target {
			return int32(i) << tagBits
		}
	}
	w.pubs = append(w.pubs, &publication{l, target})
	if len(w.pubs) > maxTags {
		panic(fmt.Sprintf("sim: %d publications in one world", len(w.pubs)))
	}
	return int32(len(w.pubs)-1) << tagBits
}

func (w *world) pub(n int32) *publication { return w.pubs[n>>tagBits] }
