package wire

import "github.com/kvferry/kvferry/room"

// nativeTag is frame 0 of every native message; frame 1 is its type. They are sent to no peer but those whose handshake names them kvferry.
const nativeTag = "KVFERRY"

// Types of native messages.
const (
	typeStatus    = "STATUS"
	typeQuiescent = "QUIESCENT"
	typeAbort     = "ABORT"
	typeAck       = "ACK"
	typeRefused   = "REFUSED"
	typeQueued    = "QUEUED"
	typeGoodbye   = "GOODBYE"
)

// classifyNative sorts a native message. KindNative is for types that are unknown, or not for this port.
func classifyNative(frames [][]byte, toPrefill bool) Kind {
	if len(frames) < 2 {
		return KindNative
	}
	k := KindNative
	switch string(frames[1]) {
	case typeAck:
		return KindNativeAck
	case typeGoodbye:
		return KindNativeGoodbye
	case typeAbort:
		if toPrefill {
			return KindNativeAbort
		}
		return KindNative
	case typeStatus:
		k = KindNativeStatus
	case typeQuiescent:
		k = KindNativeQuiescent
	case typeRefused:
		k = KindNativeRefused
	case typeQueued:
		k = KindNativeQueued
	}
	if toPrefill {
		return KindNative
	}
	return k
}

// native checks the tag, the type and the number of frames, and returns whether they are sound.
func (r *reader) native(typ string, n int) bool {
	if len(r.frames) > 0 && string(r.frames[0]) != nativeTag {
		r.fail(0, "tag", ErrUnknownType, "%s, want %q", shown(r.frames[0]), nativeTag)
		return false
	}
	if len(r.frames) > 1 && string(r.frames[1]) != typ {
		r.fail(1, "type", ErrUnknownType, "%s, want %q", shown(r.frames[1]), typ)
		return false
	}
	return r.need(n)
}

// code reads the label of a cause; empty: none. A label that this version doesn't know counts as peer_failed: the message matters more.
func (r *reader) code(i int) room.Code {
	label := r.at(i)
	if r.err != nil || len(label) == 0 {
		return 0
	}
	if len(label) <= MaxName {
		if c, ok := room.ParseCode(string(label)); ok {
			return c
		}
	}
	return room.PeerFailed
}

func (w *Writer) native(typ string) {
	w.text(nativeTag)
	w.text(typ)
}
