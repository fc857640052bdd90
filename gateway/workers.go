package gateway

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
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
	broken  atomic.Int64 // until when it is passed over, ns since 1970
}

// restFor is how long a worker that could not be reached is passed over while there are others.
const restFor = time.Second

func newPool(list []Worker) *pool {
	p := &pool{}
	for _, w := range list {
		p.list = append(p.list, &candidate{Worker: w})
	}
	return p
}

// pick returns the better of two candidates, by what runs there, and avoids those that were just tried or could not be reached. nil: none.
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
		if b.running.Load() < a.running.Load() {
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
