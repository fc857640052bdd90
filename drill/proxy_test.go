package drill

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// bench is a proxy with a listener behind it.
type bench struct {
	*network
	p      *proxy
	target net.Listener
}

func newBench(t *testing.T, k kind, owner side) *bench {
	t.Helper()
	n := newNetwork(rankHost)
	p, err := n.add(t.Context(), k, owner)
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", net.JoinHostPort(rankHost, strconv.Itoa(p.port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Close() // a test may have closed it
		n.close()
	})
	return &bench{n, p, l}
}

func (b *bench) addr() string { return net.JoinHostPort(proxyHost, strconv.Itoa(b.p.port)) }

// pair connects through the proxy.
func (b *bench) pair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	n, err := net.Dial("tcp", b.addr())
	if err != nil {
		t.Fatal(err)
	}
	f, err := b.target.Accept()
	if err != nil {
		t.Fatal(err)
	}
	near, far = n.(*net.TCPConn), f.(*net.TCPConn)
	for _, c := range []*net.TCPConn{near, far} {
		_ = c.SetDeadline(time.Now().Add(patience)) // a test may not hang
		t.Cleanup(func() { _ = c.Close() })         // a test may have closed it
	}
	return near, far
}

func write(t *testing.T, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, c net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%q %v, want %q", got[:n], err, want)
	}
}

// message is one ZeroMQ message of short frames.
func zmtpMessage(frames ...string) (b []byte) {
	for i, f := range frames {
		flags := byte(zmtpMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = append(append(b, flags, byte(len(f))), f...)
	}
	return b
}

func TestProxyPassesBytesAndEndsBothWays(t *testing.T) {
	near, far := newBench(t, kindBoot, sideP).pair(t)
	write(t, near, []byte("there"))
	read(t, far, []byte("there"))
	if err := near.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("%v, want the end of one direction", err)
	}
	write(t, far, []byte("and back"))
	read(t, near, []byte("and back"))
	_ = far.Close()
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("%v, want a clean end", err)
	}
}

// A target that is gone is refused before the end of its connections is passed on, and served again when it is back.
func TestProxyRefusesWhenItsTargetIsGone(t *testing.T) {
	b := newBench(t, kindControl, sideP)
	near, far := b.pair(t)
	_ = b.target.Close()
	_ = far.Close()
	if _, err := near.Read(make([]byte, 1)); err == nil {
		t.Fatal("the connection goes on")
	}
	if _, err := net.Dial("tcp", b.addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("%v, want a refusal", err)
	}
	var err error
	if b.target, err = net.Listen("tcp", net.JoinHostPort(rankHost, strconv.Itoa(b.p.port))); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.target.Close() }()
	if err := b.heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	near, far = b.pair(t)
	write(t, near, make([]byte, zmtpGreeting))
	read(t, far, make([]byte, zmtpGreeting))
}

func TestTrapHoldsTheMessageItIsFor(t *testing.T) {
	a, x, z := zmtpMessage("a", "1"), zmtpMessage("x", "2", "333"), zmtpMessage("z", "4")
	for f, want := range map[fate][][]byte{
		pass: {x, z}, drop: {z}, double: {x, x, z}, garble: {zmtpMessage("x", "2", "???"), z}, swap: {z, x},
	} {
		b := newBench(t, kindControl, sideP)
		near, far := b.pair(t)
		trap := newTrap(kindControl, sideP, 1, func(f [][]byte) bool { return string(f[0]) == "x" })
		b.lay(trap)
		greeting := make([]byte, zmtpGreeting)
		write(t, near, bytes.Join([][]byte{greeting, a, x, z}, nil))
		read(t, far, append(greeting, a...))
		select {
		case <-trap.caught:
		case <-time.After(patience):
			t.Fatal("the message was not caught")
		}
		b.spring(trap, f)
		read(t, far, bytes.Join(want, nil))
		write(t, near, a)
		read(t, far, a) // and nothing else was left
	}
}

func TestAllowanceCountsBytesOfPagesAlone(t *testing.T) {
	b := newBench(t, kindData, sideD)
	near, far := b.pair(t)
	spent := b.limit(5)
	header := make([]byte, dataHeader)
	header[0], header[16] = 8, 0x81
	write(t, near, append(header, "12345678"...))
	read(t, far, append(header, "12345"...))
	select {
	case <-spent:
	case <-time.After(patience):
		t.Fatal("nothing waits")
	}
	if err := b.heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	read(t, far, []byte("678"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.idle(ctx); err != nil {
		t.Error(err)
	}
}

// What was sent while no bytes pass arrives late, and so does the end.
func TestShutDirectionDeliversLate(t *testing.T) {
	b := newBench(t, kindBoot, sideP)
	near, far := b.pair(t)
	b.set(func() { b.shut[sideP] = true })
	write(t, near, []byte("late"))
	_ = near.CloseWrite()
	write(t, far, []byte("the other way is open"))
	read(t, near, []byte("the other way is open"))
	_ = far.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := far.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("%d bytes came, %v", n, err)
	}
	_ = far.SetReadDeadline(time.Now().Add(patience))
	b.set(func() { clear(b.shut) })
	read(t, far, []byte("late"))
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("%v, want the end", err)
	}
}

func TestResetIsNoticedAtBothEnds(t *testing.T) {
	b := newBench(t, kindBoot, sideP)
	near, far := b.pair(t)
	write(t, near, []byte("x"))
	read(t, far, []byte("x")) // both connections stand
	b.network.reset(func(*proxy) bool { return true })
	for _, c := range []net.Conn{near, far} {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want a reset", err)
		}
	}
}
