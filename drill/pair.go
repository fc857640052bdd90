package drill

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/kvferry/kvferry/room"
)

// pair is a prefill and a decode instance with a network between them.
type pair struct {
	self    []string
	nursery *nursery
	engine  string
	net     *network
	inst    map[side]*instance
	rooms   room.ID // the last one
	born    []*rank // every process that was started
}

// instance is the ranks of one side. They live behind the same addresses in each incarnation.
type instance struct {
	side    side
	ranks   []*rank
	setups  []Setup
	boot    string // host:port of the bootstrap server, as others reach it
	patient bool
}

// newPair makes the network and starts both instances.
func newPair(ctx context.Context, self []string, n *nursery, engine string, tp map[side]int, patient side) (*pair, error) {
	p := &pair{self: self, nursery: n, engine: engine, net: newNetwork(rankHost), inst: map[side]*instance{}}
	for _, s := range []side{sideP, sideD} {
		x, err := p.lay(ctx, s, tp[s])
		if err != nil {
			return p, err
		}
		x.patient = s == patient
		p.inst[s] = x
	}
	for _, s := range []side{sideP, sideD} {
		if err := p.launch(s); err != nil {
			return p, err
		}
	}
	for _, r := range p.all() {
		if _, err := r.await(ctx, 0, evReady); err != nil {
			return p, fmt.Errorf("%w\n%s", err, r.lastWords())
		}
	}
	return p, nil
}

// lay makes the proxies of an instance, which decide its ports.
func (p *pair) lay(ctx context.Context, s side, tp int) (*instance, error) {
	x := &instance{side: s}
	role := room.Decode
	boot := 0
	if s == sideP {
		role = room.Prefill
		b, err := p.net.add(ctx, kindBoot, s)
		if err != nil {
			return nil, err
		}
		boot = b.port
		x.boot = net.JoinHostPort(proxyHost, strconv.Itoa(boot))
	}
	var controls []int
	for i := range tp {
		var ports []int
		for _, k := range []kind{kindControl, kindName, kindData} {
			q, err := p.net.add(ctx, k, s)
			if err != nil {
				return nil, err
			}
			ports = append(ports, q.port)
		}
		controls = append(controls, ports[0])
		x.setups = append(x.setups, Setup{Side: role.String(), Engine: p.engine, TP: tp, TPRank: i, Bind: rankHost, Advertise: proxyHost, Control: ports[0], Name: ports[1], Data: ports[2]})
	}
	for i := range x.setups {
		x.setups[i].Ranks = controls
	}
	x.setups[0].Boot = boot
	return x, nil
}

// launch starts a new incarnation of an instance.
func (p *pair) launch(s side) error {
	x := p.inst[s]
	var id room.InstanceID
	_, _ = rand.Read(id[:]) // never fails
	x.ranks = nil
	for _, set := range x.setups {
		set.Instance, set.Patient = id.String(), x.patient
		r, err := p.nursery.spawn(p.self, set)
		if err != nil {
			return err
		}
		p.born = append(p.born, r)
		x.ranks = append(x.ranks, r)
	}
	return nil
}

// again replaces an instance by a new incarnation at the same addresses.
func (p *pair) again(ctx context.Context, s side) error {
	for _, r := range p.inst[s].ranks {
		r.kill()
	}
	if err := p.launch(s); err != nil {
		return err
	}
	for _, r := range p.inst[s].ranks {
		if _, err := r.await(ctx, 0, evReady); err != nil {
			return err
		}
	}
	return nil
}

func (p *pair) all() []*rank {
	var list []*rank
	for _, s := range []side{sideP, sideD} {
		if x := p.inst[s]; x != nil {
			list = append(list, x.ranks...)
		}
	}
	return list
}

// close ends every process and the network.
func (p *pair) close() {
	for _, r := range p.born {
		_ = r.cmd.Process.Kill() // all at once; it may have ended
	}
	for _, r := range p.born {
		r.kill()
	}
	p.net.close()
}

// meetings are how many rank pairs exchange something.
func (p *pair) meetings() int {
	return max(len(p.inst[sideP].ranks), len(p.inst[sideD].ranks))
}

// bytes are those of the pages and aux slots of one room.
func (p *pair) bytes() int64 {
	return 2*layers*roomPages*pageSize*kvHeads*headBytes + int64(p.meetings())*auxBytes
}

// drive is one room, as the engines of both sides drive it.
type drive struct {
	pair   *pair
	id     room.ID
	life   uint64
	ranks  map[side][]*rank
	opened map[*rank]bool
	post   chan struct{}                              // decode has its pages when it is closed
	before func(ctx context.Context, chunk int) error // called before a chunk is handed over; nil: nothing
	errs   chan error                                 // of each rank's engine, nil at its end
}

// begin opens the room on both sides and lets the engines go on. Errors of a rank that is gone are no errors: its end is what the drill is
// about.
func (p *pair) begin(ctx context.Context, post chan struct{}, before func(context.Context, int) error) (*drive, error) {
	p.rooms++
	return p.beginAs(ctx, p.rooms, post, before)
}

func (p *pair) beginAs(ctx context.Context, id room.ID, post chan struct{}, before func(context.Context, int) error) (*drive, error) {
	d, err := p.prepare(id, post, before)
	if err != nil {
		return nil, err
	}
	for _, s := range []side{sideP, sideD} {
		if err := d.open(ctx, s); err != nil {
			return d, err
		}
	}
	d.run(ctx, sideP)
	d.run(ctx, sideD)
	return d, nil
}

func (p *pair) prepare(id room.ID, post chan struct{}, before func(context.Context, int) error) (*drive, error) {
	var life [8]byte
	_, _ = rand.Read(life[:]) // never fails
	n, err := strconv.ParseUint(hex.EncodeToString(life[:]), 16, 64)
	if err != nil {
		return nil, err
	}
	d := &drive{pair: p, id: id, life: n, ranks: map[side][]*rank{}, opened: map[*rank]bool{}, post: post, before: before}
	for s, x := range p.inst {
		d.ranks[s] = x.ranks
	}
	d.errs = make(chan error, len(d.all()))
	return d, nil
}

func (d *drive) all() []*rank {
	return append(append([]*rank(nil), d.ranks[sideP]...), d.ranks[sideD]...)
}

// open makes the room on the ranks of a side.
func (d *drive) open(ctx context.Context, s side) error {
	for _, r := range d.ranks[s] {
		o := order{Op: "open", Room: d.id, Life: d.life, Boot: d.pair.inst[sideP].boot}
		if s == sideP {
			o.Pages = roomPages
		}
		if _, err := r.do(ctx, o); err != nil {
			return err
		}
		d.opened[r] = true
	}
	return nil
}

// run goes on with the ranks of a side, each on its own.
func (d *drive) run(ctx context.Context, s side) {
	for _, r := range d.ranks[s] {
		step := d.prefill
		if s == sideD {
			step = d.decode
		}
		go func() {
			err := step(ctx, r)
			if errors.Is(err, errEnded) || r.end() != 0 {
				err = nil
			}
			d.errs <- err
		}()
	}
}

// met waits until a room knows its other side; false: it has failed before.
func (d *drive) met(ctx context.Context, r *rank) (bool, error) {
	w, err := r.wait(ctx, "met or done", func(w word) bool { return w.Room == d.id && (w.Event == evMet || w.Event == evDone) })
	return w.Event == evMet || w.Status == room.Success.String(), err
}

func (d *drive) prefill(ctx context.Context, r *rank) error {
	if ok, err := d.met(ctx, r); !ok || err != nil {
		return err
	}
	for i := range chunks {
		if d.before != nil {
			if err := d.before(ctx, i); err != nil {
				return err
			}
		}
		if _, err := r.do(ctx, order{Op: "chunk", Room: d.id, Chunk: i}); err != nil {
			return err
		}
	}
	return nil
}

func (d *drive) decode(ctx context.Context, r *rank) error {
	if ok, err := d.met(ctx, r); !ok || err != nil {
		return err
	}
	select {
	case <-d.post:
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := r.do(ctx, order{Op: "post", Room: d.id, Pages: roomPages})
	return err
}

// verdicts waits until every rank that lives has its verdict.
func (d *drive) verdicts(ctx context.Context, ranks []*rank) (list []word, err error) {
	for _, r := range ranks {
		w, e := r.await(ctx, d.id, evDone)
		err = errors.Join(err, e)
		list = append(list, w)
	}
	return list, err
}

// whole runs a room from start to end and checks what arrived.
func (p *pair) whole(ctx context.Context) error {
	p.rooms++
	return p.wholeAs(ctx, p.rooms)
}

func (p *pair) wholeAs(ctx context.Context, id room.ID) error {
	d, err := p.beginAs(ctx, id, closed(), nil)
	if err != nil && d != nil {
		return errors.Join(err, d.clear(ctx))
	} else if err != nil {
		return err
	}
	for _, r := range d.all() { // the first leg that fails ends the others, as at a gateway
		go func() {
			if w, err := r.await(ctx, d.id, evDone); err == nil && w.Status != room.Success.String() {
				for _, x := range d.all() {
					_, _ = x.tell(order{Op: "abort", Room: d.id, Code: room.Aborted.String(), Text: "another leg has failed"}) // it may be gone
				}
			}
		}()
	}
	words, err := d.verdicts(ctx, d.all())
	if err != nil {
		return errors.Join(err, d.clear(ctx))
	}
	for i, w := range words {
		if w.Status != room.Success.String() {
			err = errors.Join(err, fmt.Errorf("%s: room %d: %s", d.all()[i].name, d.id, w.Cause))
		}
	}
	if err == nil {
		err = d.check(ctx)
	}
	return errors.Join(err, d.clear(ctx))
}

// check compares what arrived with what was sent.
func (d *drive) check(ctx context.Context) (err error) {
	for _, r := range d.ranks[sideD] {
		if r.end() == 0 {
			_, e := r.do(ctx, order{Op: "check", Room: d.id})
			err = errors.Join(err, e)
		}
	}
	return err
}

// clear lets go of the room on every rank that lives, and waits until it has left.
func (d *drive) clear(ctx context.Context) (err error) {
	for _, r := range d.all() {
		if _, gone := r.find(of(d.id, evCleared)); gone || r.end() != 0 || !d.opened[r] {
			continue
		}
		if _, e := r.do(ctx, order{Op: "clear", Room: d.id}); e != nil && r.end() == 0 {
			err = errors.Join(err, e)
		}
	}
	for _, r := range d.all() {
		if r.end() != 0 || !d.opened[r] {
			continue
		}
		for _, event := range []string{evCleared, evFree} {
			if _, e := r.await(ctx, d.id, event); e != nil && !errors.Is(e, errEnded) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
