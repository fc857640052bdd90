package drill

import (
	"context"
	"errors"
	"sync"
	"time"
)

// network is all that lies between the ranks of a pair: a proxy before each listener. It passes every byte until it is told otherwise.
type network struct {
	host string // of what the proxies stand for

	mu        sync.Mutex
	changed   chan struct{} // closed and renewed at each change
	shut      map[side]bool // bytes and ends on their way to that side wait
	rate      map[side]int  // bytes a second on their way to it; 0: any
	allowance int64         // bytes of pages that may still pass; negative: any
	spent     chan struct{} // closed when a byte waits for the allowance
	flip      bool          // one bit of the next bytes of a page is to be another
	trap      *trap
	waiting   int   // pumps that may not go on
	carried   int64 // bytes of pages
	closed    bool
	proxies   []*proxy
	wg        sync.WaitGroup
}

// side is a half of a pair.
type side string

const (
	sideP side = "p"
	sideD side = "d"
)

func (s side) other() side {
	if s == sideP {
		return sideD
	}
	return sideP
}

// fate is what becomes of a message that a trap holds.
type fate uint8

const (
	pass fate = iota
	drop
	double
	garble
	swap // it goes behind the next message of its connection
)

// trap holds what matches, at most want pieces, until it is sprung.
type trap struct {
	kind    kind
	towards side
	match   func(frames [][]byte) bool // nil: anything
	want    int

	caught chan struct{} // closed when want pieces are held
	sprung chan struct{} // closed when they go on
	have   int
	fate   fate
}

func newTrap(k kind, towards side, want int, match func([][]byte) bool) *trap {
	return &trap{kind: k, towards: towards, match: match, want: want, caught: make(chan struct{}), sprung: make(chan struct{})}
}

func newNetwork(host string) *network {
	return &network{host: host, changed: make(chan struct{}), shut: map[side]bool{}, rate: map[side]int{}, allowance: -1}
}

// set changes the network and wakes whoever waits.
func (n *network) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	close(n.changed)
	n.changed = make(chan struct{})
}

// wait returns once ok says so, under the lock; false: the connection or the network is at its end.
func (n *network) wait(gone <-chan struct{}, ok func() bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for !n.closed && !ok() {
		c := n.changed
		n.waiting++
		n.mu.Unlock()
		select {
		case <-c:
		case <-gone:
		}
		n.mu.Lock()
		n.waiting--
		select {
		case <-gone:
			return false
		default:
		}
	}
	return !n.closed
}

// open waits until bytes may go to a side.
func (n *network) open(gone <-chan struct{}, to side) bool {
	return n.wait(gone, func() bool { return !n.shut[to] })
}

// allow waits for room in the allowance and takes up to want bytes from it.
func (n *network) allow(gone <-chan struct{}, want int) (got int) {
	n.wait(gone, func() bool {
		switch {
		case n.allowance < 0:
			got = want
		case n.allowance > 0:
			got = int(min(int64(want), n.allowance))
			n.allowance -= int64(got)
		case n.spent != nil:
			close(n.spent)
			n.spent = nil
		}
		n.carried += int64(got)
		return got > 0
	})
	return got
}

// damage flips a bit of bytes of pages that are about to pass, if that is due.
func (n *network) damage(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.flip {
		n.flip = false
		b[len(b)/2] ^= 1
	}
}

// limit lets so many bytes of pages pass; the channel is closed when the next one waits.
func (n *network) limit(bytes int64) <-chan struct{} {
	c := make(chan struct{})
	n.set(func() { n.allowance, n.spent = bytes, c })
	return c
}

// lay sets a trap.
func (n *network) lay(t *trap) { n.set(func() { n.trap = t }) }

// spring lets go what the trap holds; later pieces pass.
func (n *network) spring(t *trap, f fate) {
	n.set(func() {
		if n.trap == t {
			n.trap = nil
		}
		select {
		case <-t.sprung:
		default:
			t.fate = f
			close(t.sprung)
		}
	})
}

// hold keeps a piece that the trap is for. It returns what is to become of it.
func (n *network) hold(l *leg, p piece) fate {
	n.mu.Lock()
	t := n.trap
	frames := p.frames
	if l.proxy.kind == kindBoot || l.proxy.kind == kindName {
		frames = [][]byte{p.raw} // these have no messages
	}
	mine := t != nil && t.kind == l.proxy.kind && t.towards == l.towards && t.have < t.want && (t.match == nil || frames != nil && t.match(frames))
	if mine {
		t.have++
		n.waiting++
		if t.have == t.want {
			close(t.caught)
		}
	}
	n.mu.Unlock()
	if !mine {
		return pass
	}
	f := drop
	select {
	case <-t.sprung:
		f = t.fate
	case <-l.conn.gone:
	}
	n.mu.Lock()
	n.waiting--
	n.mu.Unlock()
	return f
}

// pace waits as long as bytes take at the rate to a side, and a moment more.
func (n *network) pace(gone <-chan struct{}, to side, bytes int) {
	n.mu.Lock()
	rate := n.rate[to]
	n.mu.Unlock()
	if rate == 0 {
		return
	}
	t := time.NewTimer(20*time.Millisecond + time.Duration(bytes)*time.Second/time.Duration(rate))
	defer t.Stop()
	select {
	case <-t.C:
	case <-gone:
	}
}

// heal ends every fault of the network: everything that waits goes on, and every listener is there again.
func (n *network) heal(ctx context.Context) error {
	n.mu.Lock()
	t := n.trap
	n.mu.Unlock()
	if t != nil {
		n.spring(t, pass)
	}
	n.set(func() {
		clear(n.shut)
		clear(n.rate)
		n.allowance, n.flip = -1, false
	})
	var all error
	for _, p := range n.proxies {
		all = errors.Join(all, p.listen(ctx))
	}
	return all
}

// idle waits until nothing waits in the network.
func (n *network) idle(ctx context.Context) error {
	for {
		n.mu.Lock()
		busy := n.waiting > 0
		n.mu.Unlock()
		if !busy {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the network still holds bytes")
		case <-time.After(time.Millisecond):
		}
	}
}

// reset breaks every connection of the proxies that f picks.
func (n *network) reset(f func(*proxy) bool) {
	for _, p := range n.proxies {
		if f(p) {
			p.reset()
		}
	}
}

// close ends all connections and listeners and waits for their goroutines.
func (n *network) close() {
	n.set(func() { n.closed = true })
	for _, p := range n.proxies {
		p.refuse()
		p.reset()
	}
	n.wg.Wait()
}

// Hosts of the two ends of a proxy: it has the port of what it stands for. Workers choose their ports themselves, so that theirs must not be
// those of ranks.
const (
	proxyHost  = "127.0.0.1"
	rankHost   = "127.77.0.1"
	workerHost = "127.77.0.2"
)

// add makes a proxy before a listener of a side that is to be.
func (n *network) add(ctx context.Context, k kind, owner side) (*proxy, error) {
	p := &proxy{net: n, kind: k, owner: owner, conns: map[*conn]struct{}{}}
	if err := p.listen(ctx); err != nil {
		return nil, err
	}
	n.proxies = append(n.proxies, p)
	return p, nil
}

// addAt makes a proxy before a listener that is there.
func (n *network) addAt(ctx context.Context, k kind, owner side, port int) error {
	p := &proxy{net: n, kind: k, owner: owner, port: port, conns: map[*conn]struct{}{}}
	if err := p.listen(ctx); err != nil {
		return err
	}
	n.proxies = append(n.proxies, p)
	return nil
}

// holds reports that the bytes of pages are limited.
func (n *network) holds() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.allowance >= 0
}

// payload is how many bytes of pages have passed.
func (n *network) payload() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.carried
}
