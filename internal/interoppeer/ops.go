package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/room"
)

// op is one line of input; see interop/PROTOCOL.md.
type op struct {
	Op        string          `json:"op"`
	ID        json.RawMessage `json:"id"`
	Room      roomNumber      `json:"room"`
	Pages     json.RawMessage `json:"pages"` // a count or a list
	Aux       *int            `json:"aux"`
	State     [][]int32       `json:"state"`
	Prefix    *int            `json:"prefix"`
	Bootstrap string          `json:"bootstrap"`
	DPRank    int             `json:"dp_rank"`
	Status    []string        `json:"status"`
	Timeout   *float64        `json:"timeout"` // seconds
	Reason    string          `json:"reason"`
	Required  int             `json:"required"`
	Region    int             `json:"region"`
	Page      int             `json:"page"`
	Offset    int             `json:"offset"`
	Size      int             `json:"size"`
	Hex       string          `json:"hex"`
	Seed      uint64          `json:"seed"`
	Each      bool            `json:"each"`
	All       bool            `json:"all"`
	Fault     string          `json:"fault"`
	Count     *int            `json:"count"`
	Seconds   float64         `json:"seconds"`
	Start     bool            `json:"start"`
	Interval  float64         `json:"interval"`
	Prefetch  bool            `json:"prefetch"`

	// Of rounds and move.
	N        int        `json:"n"`
	First    roomNumber `json:"first"`
	Inflight int        `json:"inflight"`
	Fail     bool       `json:"fail"`
	Abort    bool       `json:"abort"`
	Pause    *float64   `json:"pause"` // seconds
	Chunk    int        `json:"chunk"`
}

// roomNumber is an exact integer, given as a number or as text.
type roomNumber struct {
	id  room.ID
	set bool
}

func (r *roomNumber) UnmarshalJSON(b []byte) (err error) {
	if string(b) == "null" {
		return nil
	}
	if len(b) > 1 && b[0] == '"' {
		b = b[1 : len(b)-1]
	}
	r.id, err = room.ParseID(b)
	r.set = err == nil
	return err
}

type answer map[string]any

func (o *op) seconds(def float64) time.Duration {
	if o.Timeout != nil {
		def = *o.Timeout
	}
	return time.Duration(def * float64(time.Second))
}

func (o *op) pause() time.Duration {
	if o.Pause == nil {
		return 2 * time.Millisecond
	}
	return time.Duration(*o.Pause * float64(time.Second))
}

func (o *op) aux(def int) int {
	if o.Aux != nil {
		return *o.Aux
	}
	return def
}

func (o *op) pageList() (list []int32, err error) {
	if len(o.Pages) > 0 {
		err = json.Unmarshal(o.Pages, &list)
	}
	return list, err
}

func (o *op) pageCount() (n int, err error) {
	if len(o.Pages) > 0 {
		err = json.Unmarshal(o.Pages, &n)
	}
	return n, err
}

// half finds the room of an op.
func (p *peer) half(o *op) (*hand, error) {
	h := p.rooms[o.Room.id]
	if h == nil {
		return nil, fmt.Errorf("room %d is not known here", o.Room.id)
	}
	return h, nil
}

func status(h *hand) answer { return answer{"status": h.half.Status().String()} }

func (p *peer) run(o *op) (answer, error) {
	switch o.Op {
	case "sender", "init", "send", "conclude_failure":
		return p.prefillOp(o)
	case "receiver", "metadata", "release_safe", "wait_release":
		return p.decodeOp(o)
	case "poll", "wait", "abort", "clear", "failure":
		return p.roomOp(o)
	case "write", "read", "fill", "digest":
		return p.memoryOp(o)
	case "tables":
		return p.tables(o.All), nil
	case "inject":
		p.engine.inject(o)
		return nil, nil
	case "calls":
		return answer{"calls": p.engine.notes(o.Start)}, nil
	case "rounds":
		return p.rounds(o)
	case "move":
		return p.move(o)
	case "threads":
		return answer{"threads": threads()}, nil
	case "prefetch":
		return nil, nil // staging only, which this peer has not
	}
	return nil, fmt.Errorf("unknown op %q", o.Op)
}

func (p *peer) prefillOp(o *op) (answer, error) {
	if p.prefill == nil {
		return nil, fmt.Errorf("%s is for a prefill rank", o.Op)
	}
	if o.Op == "sender" {
		tx, err := p.prefill.Send(o.Room.id)
		if err != nil {
			return nil, err
		}
		h := &hand{half: tx, tx: tx, aux: -1}
		p.rooms[o.Room.id] = h
		if h.left, err = o.pageCount(); err != nil {
			return nil, err
		}
		h.aux = o.aux(-1)
		return status(h), nil
	}
	h, err := p.half(o)
	if err != nil {
		return nil, err
	}
	switch o.Op {
	case "init":
		h.aux = o.aux(-1)
		if h.left, err = o.pageCount(); err != nil {
			return nil, err
		}
	case "send":
		pages, err := o.pageList()
		if err != nil {
			return nil, err
		}
		h.left -= len(pages)
		last := h.left <= 0
		c := handoff.Chunk{Pages: pages, Aux: -1, Last: last}
		if last {
			c.Aux, c.State = h.aux, o.State
		}
		if err := h.tx.Chunk(c); err != nil {
			return nil, err
		}
	case "conclude_failure":
		h.tx.Abort(room.NewCause(room.Invalid, room.Prefill, "", o.Reason))
		return answer{"returned": "Failed"}, nil
	}
	return status(h), nil
}

func (p *peer) decodeOp(o *op) (answer, error) {
	if p.decode == nil {
		return nil, fmt.Errorf("%s is for a decode rank", o.Op)
	}
	if o.Op == "receiver" {
		return p.receiver(o)
	}
	h, err := p.half(o)
	if err != nil {
		return nil, err
	}
	switch o.Op {
	case "metadata":
		if err := p.post(h, o); err != nil {
			return nil, err
		}
		return status(h), nil
	case "wait_release":
		deadline := time.Now().Add(o.seconds(10))
		for h.rx.Silent() < o.Required && time.Now().Before(deadline) {
			time.Sleep(200 * time.Microsecond)
		}
	}
	return answer{"safe": h.rx.Silent() >= o.Required}, nil
}

func (p *peer) receiver(o *op) (answer, error) {
	rx, err := p.open(o.Room.id, o, o.seconds(topologyWait.Seconds()))
	if err != nil {
		return nil, err
	}
	h := &hand{half: rx, rx: rx}
	p.rooms[o.Room.id] = h
	if len(o.Pages) > 0 && !rx.Status().Terminal() {
		if err := p.post(h, o); err != nil {
			return nil, err
		}
	}
	return status(h), nil
}

func (p *peer) post(h *hand, o *op) error {
	pages, err := o.pageList()
	if err != nil {
		return err
	}
	prefix := 0
	if o.Prefix != nil {
		prefix = *o.Prefix
	}
	return h.rx.Post(handoff.Destination{Pages: pages, Aux: o.aux(0), State: o.State, Prefix: prefix})
}

func (p *peer) roomOp(o *op) (answer, error) {
	h, err := p.half(o)
	if err != nil {
		return nil, err
	}
	switch o.Op {
	case "wait":
		want := o.Status
		if len(want) == 0 {
			want = []string{"Success", "Failed"}
		}
		deadline := time.Now().Add(o.seconds(10))
		for !slices.Contains(want, h.half.Status().String()) && time.Now().Before(deadline) {
			time.Sleep(100 * time.Microsecond)
		}
		s := h.half.Status().String()
		return answer{"status": s, "timed_out": !slices.Contains(want, s)}, nil
	case "abort":
		h.half.Abort(room.NewCause(room.Aborted, p.side, "", "Aborted by AbortReq."))
	case "clear":
		delete(p.rooms, o.Room.id)
		h.half.Clear()
		p.leave(h)
		return nil, nil
	case "failure":
		delete(p.rooms, o.Room.id)
		v := h.half.Verdict()
		h.half.Clear()
		p.leave(h)
		return answer{"text": v.Cause.Error(), "from_another_rank": v.Cause.Side != p.side}, nil
	}
	return status(h), nil
}

// leave waits for a room to leave the tables, as the harness reads them right after; what is still being written keeps its room.
func (p *peer) leave(h *hand) {
	select {
	case <-h.cleared():
	case <-time.After(200 * time.Millisecond):
	}
}

func (p *peer) memoryOp(o *op) (answer, error) {
	if o.Op == "fill" || o.Op == "digest" {
		return p.pagesOp(o)
	}
	if o.Region < 0 || o.Region >= len(p.kv) {
		return nil, fmt.Errorf("region %d, want 0 to %d", o.Region, len(p.kv)-1)
	}
	data, err := hex.DecodeString(o.Hex)
	if err != nil {
		return nil, err
	}
	size := o.Size
	if size == 0 {
		size = p.item
	}
	if o.Op == "write" {
		size = len(data)
	}
	at := o.Page*p.item + o.Offset
	if at < 0 || at+size > len(p.kv[o.Region]) {
		return nil, fmt.Errorf("%d bytes at %d, region has %d", size, at, len(p.kv[o.Region]))
	}
	b := p.kv[o.Region][at : at+size]
	if o.Op == "write" {
		copy(b, data)
		return nil, nil
	}
	return answer{"hex": hex.EncodeToString(b)}, nil
}

func (p *peer) pagesOp(o *op) (answer, error) {
	pages, err := o.pageList()
	if err != nil {
		return nil, err
	}
	rng := rand.NewChaCha8([32]byte{byte(o.Seed), byte(o.Seed >> 8), byte(o.Seed >> 16), byte(o.Seed >> 24)})
	h := sha256.New()
	each := make([][]string, len(p.kv))
	for _, page := range pages {
		if page < 0 || (int(page)+1)*p.item > len(p.kv[0]) {
			return nil, fmt.Errorf("page %d is not of the pool", page)
		}
		for i, region := range p.kv {
			b := region[int(page)*p.item : (int(page)+1)*p.item]
			if o.Op == "fill" {
				_, _ = rng.Read(b)
				continue
			}
			h.Write(b)
			sum := sha256.Sum256(b)
			each[i] = append(each[i], hex.EncodeToString(sum[:]))
		}
	}
	if o.Aux != nil {
		if *o.Aux < 0 || (*o.Aux+1)*p.auxItem > len(p.aux) {
			return nil, fmt.Errorf("aux slot %d is not there", *o.Aux)
		}
		b := p.aux[*o.Aux*p.auxItem : (*o.Aux+1)*p.auxItem]
		if o.Op == "fill" {
			_, _ = rng.Read(b)
		} else {
			h.Write(b)
		}
	}
	if o.Op == "fill" {
		return nil, nil
	}
	a := answer{"sha256": hex.EncodeToString(h.Sum(nil))}
	if o.Each {
		a["each"] = each
	}
	return a, nil
}

// tables lists what has an entry per room; the two bounded tables that outlive rooms, and what is kept per peer, only with all.
func (p *peer) tables(all bool) answer {
	c := p.counts()
	t := map[string]int{"rooms": c.Rooms, "unserved": c.Unserved, "writes": c.Writes, "halves": c.Halves, "connection_pool": c.Connections, "decode_kv_args_table": c.Registrations}
	a := answer{"tables": t}
	if all {
		a["all"] = map[string]int{"rooms": c.Rooms, "unserved": c.Unserved, "writes": c.Writes, "halves": c.Halves, "connection_pool": c.Connections,
			"decode_kv_args_table": c.Registrations, "tombstones": c.Tombstones, "quarantined": c.Quarantined, "unproven_generations": c.UnprovenGenerations}
	}
	return a
}
