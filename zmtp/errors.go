package zmtp

import "errors"

// Errors of calls.
var (
	ErrClosed    = errors.New("zmtp: socket is closed")
	ErrQueueFull = errors.New("zmtp: send queue is full")
	ErrTooLarge  = errors.New("zmtp: message exceeds a limit")
	ErrConfig    = errors.New("zmtp: invalid configuration")
)

// Causes of a ConnEvent. A cause wraps one of these, or is the operating system's error. Whose doing it is stands behind each.
var (
	ErrRefused          = errors.New("connection refused")                           // peer's host is there, nobody listens
	ErrDialTimeout      = errors.New("connecting timed out")                         // no answer at all
	ErrHandshakeTimeout = errors.New("handshake timed out")                          // peer: connected, but silent or slow
	ErrPeerClosed       = errors.New("closed by the peer")                           // peer: orderly end, or its process ended
	ErrPeerReset        = errors.New("reset by the peer")                            // peer: ended with our bytes unread
	ErrTruncated        = errors.New("truncated")                                    // peer: ends within a greeting, frame or command
	ErrProtocol         = errors.New("not ZMTP")                                     // peer
	ErrVersion          = errors.New("unsupported ZMTP version")                     // peer
	ErrMechanism        = errors.New("unsupported security mechanism")               // peer
	ErrSocketType       = errors.New("wrong socket type")                            // peer
	ErrLimit            = errors.New("limit exceeded")                               // peer
	ErrPeerError        = errors.New("the peer sent ERROR")                          // peer
	ErrTooManyConns     = errors.New("too many connections")                         // ours
	ErrEvicted          = errors.New("evicted to keep memory or handshakes bounded") // ours
	ErrDisconnected     = errors.New("disconnected on request")                      // ours: Peer.Disconnect
)
