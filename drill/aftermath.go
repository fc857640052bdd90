package drill

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/room"
)

// heal ends the fault, replaces instances that have lost a process, and lets late bytes arrive.
func (r *run) heal() error {
	if r.Fault == "stopped" {
		for x := range r.hurt {
			if err := x.signal(syscall.SIGCONT); err != nil {
				return err
			}
		}
	}
	if err := r.net.heal(r.wait); err != nil {
		return err
	}
	for _, x := range r.ending() {
		if err := r.until(x.name+" ends", x.done); err != nil {
			return err
		}
	}
	for _, x := range r.pair.inst[sideP].ranks {
		if x.end() == 0 {
			if _, err := x.do(r.wait, order{Op: "heal"}); err != nil {
				return err
			}
		}
	}
	if r.Fault == "stopped" {
		for x := range r.hurt {
			r.afterStop(x)
		}
	}
	for _, s := range []side{sideP, sideD} {
		if slices.ContainsFunc(r.pair.inst[s].ranks, func(x *rank) bool { return x.end() != 0 }) {
			if err := r.finish(s); err != nil {
				return err
			}
			if err := r.replace(s); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(r.wait, patience)
	defer cancel()
	return r.net.idle(ctx)
}

// ending are the ranks that the fault makes end.
func (r *run) ending() (list []*rank) {
	switch r.Fault {
	case "drain":
		return r.room.ranks[r.side]
	case "killed", "rank-killed", "restart":
		return slices.Collect(maps.Keys(r.hurt))
	}
	return nil
}

// replace puts a new incarnation in the place of an instance.
func (r *run) replace(s side) error {
	if err := r.pair.again(r.wait, s); err != nil {
		return err
	}
	for _, p := range r.net.proxies {
		if err := p.listen(r.wait); err != nil {
			return err
		}
	}
	return nil
}

// afterStop looks at a process that goes on: its room must come to a verdict, too.
func (r *run) afterStop(x *rank) {
	w := mustFail
	if r.Moment.over() {
		w = mustSucceed
	}
	v, err := x.await(r.wait, r.room.id, evDone)
	if err != nil {
		r.problem("after it went on: %v", err)
	} else if p := w.judge(v); p != "" {
		r.problem("%s: after it went on: room %s", x.name, p)
	}
}

// finish ends the drilled room on what lives of an instance that is to be replaced.
func (r *run) finish(s side) error {
	for _, x := range r.room.ranks[s] {
		if x.end() != 0 {
			continue
		}
		if _, gone := x.find(of(r.room.id, evFree)); !gone && r.Moment.over() {
			if _, err := x.tell(order{Op: "clear", Room: r.room.id}); err != nil {
				return err
			}
		}
		if _, err := x.await(r.wait, r.room.id, evFree); err != nil && !errors.Is(err, errEnded) {
			r.problem("%v", err)
		}
	}
	return r.wait.Err()
}

// aftermath looks at what is left: bytes, tables, pages, and whether rooms work.
func (r *run) aftermath() error {
	success := func(x *rank) bool {
		w, ok := x.find(of(r.room.id, evDone))
		return ok && w.Status == room.Success.String()
	}
	if slices.ContainsFunc(r.room.ranks[sideD], success) {
		if r.Moment != Cleared {
			if err := r.room.check(r.wait); err != nil {
				r.problem("%v", err)
			}
		}
		for _, x := range r.room.ranks[sideP] {
			if x.end() == 0 && !success(x) {
				r.problem("decode succeeded, %s did not", x.name)
			}
		}
	} else if slices.ContainsFunc(r.room.ranks[sideP], success) && r.Moment != LastByte && r.Fault != "rank-killed" && r.Fault != faultVanish {
		r.problem("prefill succeeded, decode did not")
	}
	for _, d := range []*drive{r.room, r.with} {
		if d == nil {
			continue
		}
		if err := d.clear(r.wait); err != nil {
			r.problem("%v", err)
		}
	}
	if err := r.again(); err != nil {
		r.problem("the next rooms: %v", err)
	}
	for _, x := range r.pair.all() {
		r.empty(x)
	}
	if err := r.numbersBack(); err != nil {
		return err
	}
	return r.wait.Err()
}

// again runs two rooms at a time, which take all pages, until both succeed.
func (r *run) again() error {
	ctx, cancel := context.WithTimeout(r.wait, patience)
	defer cancel()
	for {
		var errs [2]error
		var wg sync.WaitGroup
		for i := range errs {
			r.pair.rooms++
			id := r.pair.rooms
			wg.Go(func() { errs[i] = r.pair.wholeAs(ctx, id) })
		}
		wg.Wait()
		err := errors.Join(errs[0], errs[1])
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.out.Retries++
		r.out.Again = err.Error()
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// tables asks a rank for its tables until they are fit, for as long as patience lasts.
func (r *run) tables(x *rank, fit func(tables) bool) (t tables, ok bool) {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		w, err := x.do(r.wait, order{Op: "tables"})
		if err != nil {
			r.problem("%v", err)
			return t, false
		}
		t = *w.Tables
		if ok = fit(t); ok || time.Now().After(end) || r.wait.Err() != nil {
			return t, ok
		}
	}
}

// empty checks a rank's tables and that nobody has written to free pages.
func (r *run) empty(x *rank) {
	role := sideP
	if x.setup.Side == room.Decode.String() {
		role = sideD
	}
	var last tables
	t, ok := r.tables(x, func(t tables) bool {
		last = t
		unread := t.Unread
		t.Unread = 0
		if r.cutWrite() { // each on its side
			t.Withheld, t.Doubts = 0, 0
		}
		return t == tables{} && (unread > 0) == (r.Fault == "msg-malformed" && role == r.side)
	})
	switch {
	case !ok:
		r.problem("%s: tables are %+v, want them empty", x.name, last)
	case role == sideD && r.Fault == faultLands && t.Withheld == 0:
		r.problem("%s: page numbers are free although bytes for them may still come", x.name)
	}
	if _, err := x.do(r.wait, order{Op: "guards"}); err != nil {
		r.problem("%v", err)
	}
}

// numbersBack replaces prefill where decode keeps page numbers because of it: with its process the last doubt is gone.
func (r *run) numbersBack() error {
	kept := false
	for _, x := range r.pair.inst[sideD].ranks {
		w, err := x.do(r.wait, order{Op: "tables"})
		if err != nil {
			return err
		}
		kept = kept || w.Tables.Withheld > 0
	}
	if !kept || !r.cutWrite() {
		return nil
	}
	if err := r.replace(sideP); err != nil {
		return err
	}
	if err := r.again(); err != nil {
		r.problem("the next rooms: %v", err)
	}
	for _, x := range r.pair.inst[sideD].ranks {
		if t, ok := r.tables(x, func(t tables) bool { return t.Withheld == 0 }); !ok {
			r.problem("%s: %d page numbers are kept although prefill's process is gone", x.name, t.Withheld)
		}
	}
	return nil
}
