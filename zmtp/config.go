package zmtp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Config is shared by Push and Pull. The zero value works. It is copied and checked once, at construction.
type Config struct {
	// Logger gets connections coming and going at Debug, and trouble of our own (accept failing) at Warn. nil: nothing is logged.
	Logger *slog.Logger

	// Properties are sent in READY. Not to be changed after construction.
	Properties Properties

	// Events is told of every connection. It is called from the connections' goroutines, for one connection in order; it must not block
	// and must not call Close. nil: nobody is told.
	Events func(ConnEvent)

	Limits Limits

	// HandshakeTimeout bounds the time from connect to READY, however busily the peer sends. 0: 5 s.
	HandshakeTimeout time.Duration

	// DialTimeout bounds one attempt to connect. 0: 1 s.
	DialTimeout time.Duration

	// PingInterval is the silence after which PING is sent, and the time between two PINGs. A PULL pings too, so that a PUSH hears from it
	// while its receive queue is full. Peers of ZMTP 3.0 are not pinged: PING came with 3.1. 0: 300 ms; negative: no PING.
	PingInterval time.Duration

	// ReconnectMin and ReconnectMax are the first and the longest pause between two attempts to connect; each pause doubles, and is
	// shortened at random by up to a half. The first attempt after a connection that lasted at least ReconnectMax is made at once.
	// 0: 20 ms, 250 ms.
	ReconnectMin, ReconnectMax time.Duration

	// Advertise is the host, or host:port, under which peers reach a Pull, when it is not the bound address (containers, proxies).
	// "": the bound address.
	Advertise string

	// DialConn and ListenConn replace TCP in tests. nil: TCP.
	DialConn   func(ctx context.Context, network, address string) (net.Conn, error)
	ListenConn func(ctx context.Context, network, address string) (net.Listener, error)
}

// Limits bound what a socket holds. Zero fields take the default in brackets. Sizes are bytes and count 32 for each frame and 64 for each
// message beside the payload, which is what they cost in memory; MaxFrame alone counts payload only.
type Limits struct {
	MaxFrame   int // payload of one frame [64 MiB]
	MaxMessage int // one message [64 MiB + 64 KiB]
	MaxFrames  int // frames of one message [1024]

	// QueueMessages and QueueBytes bound the send queue of a Push, what is being written included, and the receive queue of each
	// connection of a Pull [10,000; 128 MiB].
	QueueMessages int
	QueueBytes    int

	// ReadAhead is how far a Pull reads on when a connection's receive queue is full, so that a PING behind the messages is answered; then
	// it stops reading that connection, and the sender feels it [1 MiB].
	ReadAhead int

	// TotalBytes bounds all receive queues of a Pull together, incomplete large messages included [256 MiB].
	TotalBytes int

	// MaxConns bounds the connections of a Pull, MaxHandshakes those of them that have not sent READY yet; when one too many comes, the
	// one that has been shaking hands longest gives way [1024; 128].
	MaxConns      int
	MaxHandshakes int
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Events == nil {
		c.Events = func(ConnEvent) {}
	}
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.DialTimeout, time.Second)
	setDefault(&c.PingInterval, 300*time.Millisecond)
	setDefault(&c.ReconnectMin, 20*time.Millisecond)
	setDefault(&c.ReconnectMax, 250*time.Millisecond)
	l := &c.Limits
	setDefault(&l.MaxFrame, 64<<20)
	setDefault(&l.MaxMessage, 64<<20+64<<10)
	setDefault(&l.MaxFrames, 1024)
	setDefault(&l.QueueMessages, 10_000)
	setDefault(&l.QueueBytes, 128<<20)
	setDefault(&l.ReadAhead, 1<<20)
	setDefault(&l.TotalBytes, 256<<20)
	setDefault(&l.MaxConns, 1024)
	setDefault(&l.MaxHandshakes, 128)
	for _, n := range []struct {
		name string
		v    int
	}{
		{"MaxFrame", l.MaxFrame}, {"MaxMessage", l.MaxMessage}, {"MaxFrames", l.MaxFrames}, {"QueueMessages", l.QueueMessages},
		{"QueueBytes", l.QueueBytes}, {"ReadAhead", l.ReadAhead}, {"TotalBytes", l.TotalBytes}, {"MaxConns", l.MaxConns},
		{"MaxHandshakes", l.MaxHandshakes}, {"HandshakeTimeout", int(c.HandshakeTimeout)}, {"DialTimeout", int(c.DialTimeout)},
		{"ReconnectMin", int(c.ReconnectMin)}, {"ReconnectMax", int(c.ReconnectMax)},
	} {
		if n.v < 0 {
			return c, fmt.Errorf("%w: %s is %d, want a positive number", ErrConfig, n.name, n.v)
		}
	}
	switch {
	case l.QueueBytes < l.MaxMessage:
		return c, fmt.Errorf("%w: QueueBytes %d is less than MaxMessage %d", ErrConfig, l.QueueBytes, l.MaxMessage)
	case l.TotalBytes < l.MaxMessage:
		return c, fmt.Errorf("%w: TotalBytes %d is less than MaxMessage %d", ErrConfig, l.TotalBytes, l.MaxMessage)
	case c.ReconnectMax < c.ReconnectMin:
		return c, fmt.Errorf("%w: ReconnectMax %v is less than ReconnectMin %v", ErrConfig, c.ReconnectMax, c.ReconnectMin)
	}
	if err := c.Properties.validate(); err != nil {
		return c, err
	}
	if c.DialConn == nil {
		d := &net.Dialer{}
		d.SetMultipathTCP(false)
		c.DialConn = d.DialContext
	}
	if c.ListenConn == nil {
		lc := &net.ListenConfig{}
		lc.SetMultipathTCP(false) // plain TCP: no second handshake, and the latency the benchmarks measure
		c.ListenConn = lc.Listen
	}
	return c, nil
}

// EventKind is what happened to a connection.
type EventKind uint8

const (
	_ EventKind = iota
	// Up: READY came, messages flow. Peer is set.
	Up
	// Down: a connection that was up has ended. Peer is set, Cause says why, Stats is final.
	Down
	// DialFailed: a Push could not connect, or connected and got no valid READY. Cause: ErrRefused, ErrDialTimeout,
	// ErrHandshakeTimeout, ErrProtocol, …
	DialFailed
	// Rejected: a Pull ended a connection that never sent a valid READY.
	Rejected
)

func (k EventKind) String() string {
	switch k {
	case Up:
		return "up"
	case Down:
		return "down"
	case DialFailed:
		return "dial_failed"
	case Rejected:
		return "rejected"
	}
	return "unknown"
}

// ConnEvent is one thing that happened to a connection of a Push or Pull.
type ConnEvent struct {
	Kind     EventKind
	Endpoint string // Push: the endpoint dialled; Pull: the local one
	Remote   string // address of the other end, "" if there was no connection
	Peer     *Peer  // Up and Down
	Cause    error  // Down, DialFailed, Rejected
	Attempt  int    // DialFailed: attempts since the last Up, from 1
	Stats    Stats  // Down: of the whole connection. MessagesOut is what the kernel had taken, and so may be lost
}
