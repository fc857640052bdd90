package gateway

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Worker is a candidate for a leg.
type Worker struct {
	URL       string // base of its HTTP API, without a slash at the end
	Bootstrap string // prefill: host:port of its bootstrap server
	FreePages int    // as it said last; 0 where it says nothing
}

// ParseWorker reads URL[@BOOTSTRAP], where BOOTSTRAP is host:port, or a port on the URL's host.
func ParseWorker(text string) (Worker, error) {
	base, boot, _ := strings.Cut(text, "@")
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return Worker{}, fmt.Errorf("worker %q: want http://HOST:PORT[@BOOTSTRAP]", text)
	}
	if boot != "" && !strings.Contains(boot, ":") {
		boot = net.JoinHostPort(u.Hostname(), boot)
	}
	if boot != "" {
		_, port, err := net.SplitHostPort(boot)
		if n, convErr := strconv.Atoi(port); err != nil || convErr != nil || n < 1 || n > 65535 {
			return Worker{}, fmt.Errorf("worker %q: bootstrap %q, want HOST:PORT or a port", text, boot)
		}
	}
	return Worker{URL: strings.TrimSuffix(base, "/"), Bootstrap: boot}, nil
}

// pool is the workers of one role.
type pool struct {
	mu   sync.Mutex
	list []*candidate
}

type candidate struct {
	Worker
	running atomic.Int64
	free    atomic.Int64 // pages
	broken  atomic.Int64 // until when it is passed over, ns since 1970

	probe  sync.Mutex // one question at a time
	probed time.Time
	alive  bool
}

// restFor is how long a worker that could not be reached is passed over while there are others.
const restFor = time.Second

func newPool(list []Worker) *pool {
	p := &pool{}
	p.update(list)
	return p
}

// update replaces the workers. Of one that stays, what runs there is kept; requests on one that has left go on.
func (p *pool) update(list []Worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := map[string]*candidate{}
	for _, c := range p.list {
		old[c.URL+"@"+c.Bootstrap] = c
	}
	p.list = nil
	for _, w := range list {
		c := old[w.URL+"@"+w.Bootstrap]
		if c == nil {
			c = &candidate{Worker: w}
		}
		c.free.Store(int64(w.FreePages))
		p.list = append(p.list, c)
	}
}

// all is the workers now.
func (p *pool) all() []*candidate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

// pick returns the better of two candidates, by what runs there, then by free pages, and avoids those that were just tried or could not be reached. nil: none.
func (p *pool) pick(tried map[*candidate]bool) *candidate {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now().UnixNano()
	for _, strict := range []bool{true, false} {
		var fit []*candidate
		for _, c := range p.list {
			if !tried[c] && (!strict || c.broken.Load() < now) {
				fit = append(fit, c)
			}
		}
		if len(fit) == 0 {
			continue
		}
		a, b := fit[rand.IntN(len(fit))], fit[rand.IntN(len(fit))]
		if ra, rb := a.running.Load(), b.running.Load(); rb < ra || rb == ra && b.free.Load() > a.free.Load() {
			a = b
		}
		return a
	}
	return nil
}

func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.list)
}
