package drill

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/wire"
)

// now notes the time of the fault.
func (r *run) now() { r.at = monotonic() }

func (r *run) victims() []*rank { return r.room.ranks[r.side] }

// shoot signals ranks that say nothing more for the time being.
func (r *run) shoot(sig syscall.Signal, list []*rank) (err error) {
	r.now()
	for _, x := range list {
		r.hurt[x] = true
		err = errors.Join(err, x.signal(sig))
	}
	for _, x := range list {
		if sig == syscall.SIGSTOP && err == nil {
			err = x.halted()
		}
	}
	return err
}

func (r *run) kill() error    { return r.shoot(syscall.SIGKILL, r.victims()) }
func (r *run) stop() error    { return r.shoot(syscall.SIGSTOP, r.victims()) }
func (r *run) killOne() error { return r.shoot(syscall.SIGKILL, r.victims()[1:]) }

// pauseTime is longer than any time of silence that condemns, and shorter than a state may last.
const pauseTime = 5 * time.Second

func (r *run) pause() error {
	if err := r.shoot(syscall.SIGSTOP, r.victims()); err != nil {
		return err
	}
	r.letPost()
	if r.trap != nil {
		r.net.spring(r.trap, pass)
	}
	r.net.limit(-1)
	select {
	case <-time.After(pauseTime):
	case <-r.wait.Done():
		return r.wait.Err()
	}
	clear(r.hurt)
	for _, x := range r.victims() {
		if err := x.signal(syscall.SIGCONT); err != nil {
			return err
		}
	}
	return nil
}

// restart keeps the end of the old processes from everybody until new ones are there.
func (r *run) restart() error {
	r.net.set(func() { r.net.shut[sideP], r.net.shut[sideD] = true, true })
	if err := r.kill(); err != nil {
		return err
	}
	if err := r.pair.again(r.wait, r.side); err != nil {
		return err
	}
	r.net.set(func() { clear(r.net.shut) })
	return nil
}

func (r *run) drain() (err error) {
	r.now()
	for _, x := range r.victims() {
		_, e := x.tell(order{Op: "close"})
		err = errors.Join(err, e)
	}
	return err
}

func (r *run) cut() error {
	r.now()
	r.net.set(func() { r.net.shut[sideP], r.net.shut[sideD] = true, true })
	r.net.reset(func(*proxy) bool { return true })
	return nil
}

func (r *run) swallow() error {
	r.now()
	r.net.set(func() { r.net.shut[sideP], r.net.shut[sideD] = true, true })
	return nil
}

func (r *run) mute() error {
	r.now()
	r.net.set(func() { r.net.shut[r.side.other()] = true })
	return nil
}

func (r *run) slow() error {
	r.now()
	r.net.set(func() { r.net.rate[r.side.other()] = 1 << 20 })
	return nil
}

func (r *run) reset() error {
	r.now()
	r.net.reset(func(p *proxy) bool { return p.owner == r.side })
	return nil
}

func (r *run) flip() error {
	r.now()
	r.net.set(func() { r.net.flip = true })
	return nil
}

func (r *run) loseRegistry() error {
	r.now()
	for _, p := range r.net.proxies {
		if p.kind == kindBoot {
			p.refuse()
			p.reset()
		}
	}
	return nil
}

func (r *run) giveUp(s side, text string) (err error) {
	for _, x := range r.room.ranks[s] {
		_, e := x.do(r.wait, order{Op: "abort", Room: r.room.id, Code: room.Aborted.String(), Text: text})
		err = errors.Join(err, e)
	}
	return err
}

func (r *run) abort() error {
	r.now()
	return r.giveUp(r.side, "the engine gives it up")
}

// isWrite reports that the fault is one of an engine's write.
func (r *run) isWrite() bool {
	return slices.Contains([]string{faultError, faultPartial, faultLands, faultStuck, faultVanish}, r.Fault)
}

// beforeChunk arms the engine's fault for the write that marks the moment.
func (r *run) beforeChunk(ctx context.Context, chunk int) error {
	at := 1
	if r.Moment == LastByte {
		at = chunks - 1
	}
	if !r.isWrite() || chunk != at {
		return nil
	}
	for _, x := range r.victims() {
		if _, err := x.do(ctx, order{Op: "fault", Fault: r.Fault}); err != nil {
			return err
		}
	}
	r.now()
	close(r.hit)
	return nil
}

func (r *run) spoilWrite() error {
	if err := r.until("the write", r.hit); err != nil || r.Fault != faultStuck {
		return err
	}
	select {
	case <-time.After(time.Second):
		return r.giveUp(sideD, "the client waits no longer")
	case <-r.wait.Done():
		return r.wait.Err()
	}
}

func (r *run) isMessage() bool { return message(r.Moment, r.side) != "" && r.Fault[:3] == "msg" }

// messageTrap is for the message that marks the moment on its way to the side.
func (r *run) messageTrap(id room.ID) *trap {
	fits := func(f [][]byte) bool {
		return len(f) > 6 && wire.ClassifyP(wire.Mooncake, f) == wire.KindNativeAbort && string(f[2]) == id.String()
	}
	switch {
	case r.Moment == LastByte && r.side == sideP:
		fits = func(f [][]byte) bool {
			return len(f) > 5 && wire.ClassifyP(wire.Mooncake, f) == wire.KindNativeAck && string(f[2]) == id.String()
		}
	case r.side == sideD:
		status := room.Success
		if r.Moment == InFlight {
			status = room.Failed
		}
		fits = func(f [][]byte) bool {
			m, err := wire.ParseNativeStatus(f)
			return err == nil && m.Room == id && m.Status == status
		}
	}
	return newTrap(kindControl, r.side, 1, fits)
}

// spoilMessage does to the message what the fault says. The messages in flight are those of a room that is given up.
func (r *run) spoilMessage() error {
	if r.Moment == InFlight {
		r.trap = r.messageTrap(r.room.id)
		r.net.lay(r.trap)
		if err := r.giveUp(r.side.other(), "the engine gives it up"); err != nil {
			return err
		}
		if err := r.until(message(r.Moment, r.side), r.trap.caught); err != nil {
			return err
		}
	}
	r.now()
	fates := map[string]fate{"msg-lost": drop, "msg-duplicated": double, "msg-malformed": garble, "msg-reordered": swap}
	r.net.spring(r.trap, fates[r.Fault])
	if r.Fault != "msg-reordered" {
		return nil
	}
	r.net.limit(-1) // they need the bytes of their pages
	var err error
	r.with, err = r.pair.begin(r.wait, closed(), nil) // its messages are the next ones
	if err != nil {
		return err
	}
	words, err := r.with.verdicts(r.wait, r.with.all())
	for _, w := range words {
		if p := mustSucceed.judge(w); err == nil && p != "" {
			r.problem("the room beside it %s", p)
		}
	}
	if err == nil {
		err = r.with.check(r.wait)
	}
	return err
}

// decodeFirst brings a room to the moment where prefill has decode's pages but none of its own.
func (r *run) decodeFirst() (err error) {
	for _, x := range r.pair.inst[sideP].ranks {
		if _, err := x.do(r.wait, order{Op: "hoard", Pages: poolPages}); err != nil {
			return err
		}
	}
	r.letPost()
	r.pair.rooms++
	if r.room, err = r.pair.prepare(r.pair.rooms, r.post, nil); err != nil {
		return err
	}
	if err := r.room.open(r.wait, sideD); err != nil {
		return err
	}
	r.room.run(r.wait, sideD)
	for _, x := range r.victims() {
		end := time.Now().Add(patience)
		for unserved := 0; unserved == 0; {
			w, err := x.do(r.wait, order{Op: "tables"})
			if err != nil {
				return err
			}
			if unserved = w.Tables.Unserved; time.Now().After(end) {
				return errors.New("decode's pages did not become known")
			}
		}
	}
	return nil
}

// starve makes the side find no pages for a while.
func (r *run) starve() error {
	r.now()
	if r.side == sideP {
		if err := r.room.open(r.wait, sideP); err == nil {
			return errors.New("prefill found pages in an empty pool")
		}
	} else {
		for _, x := range r.victims() {
			if _, err := x.do(r.wait, order{Op: "hoard", Pages: poolPages}); err != nil {
				return err
			}
			if _, err := x.do(r.wait, order{Op: "post", Room: r.room.id, Pages: roomPages}); err == nil {
				return errors.New("decode found pages in an empty pool")
			}
		}
	}
	select {
	case <-time.After(500 * time.Millisecond):
	case <-r.wait.Done():
		return r.wait.Err()
	}
	for _, x := range r.victims() {
		if _, err := x.do(r.wait, order{Op: "share"}); err != nil {
			return err
		}
	}
	if r.side == sideP {
		if err := r.room.open(r.wait, sideP); err != nil {
			return err
		}
		r.room.run(r.wait, sideP)
	}
	return nil
}
