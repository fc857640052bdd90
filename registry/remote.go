package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Remote is a Store that is served elsewhere. It is safe for concurrent use; nothing here belongs on the path that schedules rooms.
//
// Errors: ErrUnavailable (ask again), ErrInvalid, ErrDenied, ErrSuperseded, ErrFull, ErrNotFound.
type Remote struct {
	URL   string       // base, as http://host:port
	Token string       // "": none
	HTTP  *http.Client // nil: one without proxies
	Log   *slog.Logger // nil: silent
}

// Times of a Remote.
const (
	leaveTimeout = time.Second
	askWait      = 20 * time.Second // of one question of a watcher
	firstRetry   = 50 * time.Millisecond
	maxRetry     = time.Second
)

func (r *Remote) ask(ctx context.Context, method, path string, v any, timeout time.Duration) ([]byte, error) {
	var body []byte
	if v != nil {
		var err error
		if body, err = json.Marshal(v); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	b, err := ask(ctx, r.HTTP, request{method: method, base: strings.TrimSuffix(r.URL, "/"), path: path, body: body, token: r.Token, timeout: timeout})
	if errors.Is(err, ErrNotReady) { // 503 is how a closed store answers
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return b, err
}

// Register is Store.Register.
func (r *Remote) Register(ctx context.Context, i Instance) (Lease, error) {
	return r.register(ctx, i, defaultTimeout)
}

func (r *Remote) register(ctx context.Context, i Instance, timeout time.Duration) (Lease, error) {
	i, err := i.normal()
	if err != nil {
		return Lease{}, err
	}
	b, err := r.ask(ctx, http.MethodPut, InstancesPath+"/"+i.ID.String(), i, timeout)
	if err != nil {
		return Lease{}, err
	}
	return parseLease(b)
}

func parseLease(b []byte) (Lease, error) {
	var l Lease
	if err := json.Unmarshal(b, &l); err != nil || l.TTL < minTTL || l.TTL > maxTTL {
		return Lease{}, fmt.Errorf("%w: lease %s, want ttl_ns from %d to %d", ErrInvalid, shown(b), minTTL, maxTTL)
	}
	return l, nil
}

// Leave is Store.Leave.
func (r *Remote) Leave(ctx context.Context, id room.InstanceID) error {
	_, err := r.ask(ctx, http.MethodDelete, InstancesPath+"/"+id.String(), nil, defaultTimeout)
	return err
}

// Wait is Store.Wait with a limit: after wait (at most 30 s) it returns what there is.
func (r *Remote) Wait(ctx context.Context, life room.InstanceID, after uint64, wait time.Duration) (Snapshot, error) {
	wait = min(max(wait, 0), maxWait)
	path := InstancesPath + "?after=" + strconv.FormatUint(after, 10) + "&wait_ms=" + strconv.FormatInt(wait.Milliseconds(), 10)
	if !life.IsZero() {
		path += "&registry=" + life.String()
	}
	b, err := r.ask(ctx, http.MethodGet, path, nil, wait+defaultTimeout)
	if err != nil {
		return Snapshot{}, err
	}
	return ParseSnapshot(b)
}

// Keep registers what state says, again and again, three times in a lease's time, and leaves when ctx ends; then it returns nil. A registry
// that is away or new is found again. state is called before each registration, by Keep's goroutine, and must not block; the ID never
// changes. Keep returns early, with the error, when the registry refuses for good: ErrInvalid, ErrDenied, ErrSuperseded.
func (r *Remote) Keep(ctx context.Context, state func() Instance) error {
	ttl, pause := DefaultTTL, firstRetry
	var id room.InstanceID
	out := outage{log: r.Log, url: r.URL}
	defer func() {
		if !id.IsZero() {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
			defer cancel()
			if err := r.Leave(end, id); err != nil && r.Log != nil {
				r.Log.Debug("the registry was not told of the end; the lease runs out", "registry", r.URL, "error", err)
			}
		}
	}()
	for ctx.Err() == nil {
		i := state()
		l, err := r.register(ctx, i, ttl/3)
		out.note(err)
		var wait time.Duration
		switch {
		case err == nil:
			id, ttl, pause = i.ID, l.TTL, firstRetry
			wait = ttl / 3
		case ctx.Err() != nil:
			return nil
		case permanent(err):
			if errors.Is(err, ErrSuperseded) {
				id = room.InstanceID{} // nothing of ours is there
			}
			return err
		default:
			wait, pause = pause, min(2*pause, maxRetry, ttl/3)
		}
		sleep(ctx, jitter(wait))
	}
	return nil
}

// Watch calls fn with every revision that it can keep up with, the present one first, until ctx ends; then it returns nil. fn is called by
// the caller's goroutine. While the registry is away, the last snapshot stands. While a restarted one fills up again, instances that the old one
// knew and the new one has not seen yet are kept, so that a restart of the registry is no loss of workers. Watch returns early, with the
// error, when the registry refuses for good.
func (r *Remote) Watch(ctx context.Context, fn func(Snapshot)) error {
	var w watcher
	pause := firstRetry
	out := outage{log: r.Log, url: r.URL}
	for ctx.Err() == nil {
		v, err := r.Wait(ctx, w.last.Registry, w.last.Revision, askWait)
		out.note(err)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			pause = firstRetry
			if v.Registry != w.last.Registry || v.Revision != w.last.Revision {
				fn(w.next(v))
			}
		case permanent(err):
			return err
		default:
			sleep(ctx, jitter(pause))
			pause = min(2*pause, maxRetry)
		}
	}
	return nil
}

// jitter takes up to a quarter off, so that workers of one start don't stay in step.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.75 + rand.Float64()/4))
}

// watcher carries instances over a restart of the registry.
type watcher struct {
	last  Snapshot
	carry map[string]Instance // by URL: known to the last registry, not seen by this one, which is not settled
}

func (w *watcher) next(v Snapshot) Snapshot {
	if v.Registry != w.last.Registry {
		w.carry = map[string]Instance{}
		for _, i := range w.last.Instances {
			w.carry[i.URL] = i
		}
	}
	if v.Settled {
		w.carry = nil
	}
	for _, i := range v.Instances {
		delete(w.carry, i.URL)
	}
	for _, i := range w.carry {
		v.Instances = append(v.Instances, i)
	}
	sortInstances(v.Instances)
	w.last = v
	return v
}

// outage logs the first failure of a row of them, and the recovery.
type outage struct {
	log *slog.Logger
	url string
	on  bool
}

func (o *outage) note(err error) {
	bad := err != nil && !errors.Is(err, context.Canceled)
	if o.log == nil || bad == o.on {
		return
	}
	o.on = bad
	if bad {
		o.log.Warn("the registry does not answer", "registry", o.url, "error", err)
		return
	}
	o.log.Info("the registry answers again", "registry", o.url)
}
