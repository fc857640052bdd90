// Package mooncake is the dialect of SGLang's Mooncake backend, with kvferry's native messages between kvferry peers.
//
// Completion rule: each prefill rank that holds something for a decode rank sends one untagged status message, Success after its last
// chunk, state and aux are written. Malformed-message policy: drop, count, go on; of staging and AUX_DATA nothing is used.
package mooncake

import (
	"fmt"

	"github.com/kvferry/kvferry/backend"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/wire"
)

// Dialect implements backend.Dialect.
type Dialect struct{}

var _ backend.Dialect = Dialect{}

func (Dialect) Name() string { return "mooncake" }

func malformed(err error) error { return fmt.Errorf("%w: %w", backend.ErrMalformed, err) }

// ReadPrefill implements backend.Dialect.
func (Dialect) ReadPrefill(frames [][]byte, from backend.From) (node.Event, *backend.Introduction, string, error) {
	kind := wire.ClassifyP(wire.Mooncake, frames)
	native := !from.Instance.IsZero()
	switch kind {
	case wire.KindRegistration:
		in, err := readRegistration(frames, native)
		return nil, in, kind.String(), err
	case wire.KindMetadata:
		ev, err := readMetadata(frames, native)
		return ev, nil, kind.String(), err
	case wire.KindAbort:
		m, err := wire.ParseAbort(frames)
		if err != nil {
			return nil, nil, kind.String(), malformed(err)
		}
		ev := node.AbortHeard{Room: m.Room, Generation: m.Generation, HasGeneration: m.HasGeneration}
		if !m.Addr.IsZero() {
			ev.Endpoint = m.Addr.Endpoint()
		}
		return ev, nil, kind.String(), nil
	case wire.KindNativeAbort:
		m, err := wire.ParseNativeAbort(frames)
		if err != nil {
			return nil, nil, kind.String(), malformed(err)
		}
		endpoint := m.Addr.Endpoint()
		return node.AbortHeard{Room: m.Room, Epoch: m.Epoch, Endpoint: endpoint, Cause: causeOf(m.Code, room.Decode, endpoint, m.Text), Seq: m.Seq}, nil, kind.String(), nil
	default:
		ev, err := readBoth(kind, frames, room.Decode, from)
		return ev, nil, kind.String(), err
	}
}

// readBoth reads what either side may send; side is the sender's.
func readBoth(kind wire.Kind, frames [][]byte, side room.Side, from backend.From) (node.Event, error) {
	switch kind {
	case wire.KindNativeAck:
		m, err := wire.ParseNativeAck(frames)
		if err != nil {
			return nil, malformed(err)
		}
		return node.ReceiptHeard{Room: m.Room, Seq: m.Seq}, nil
	case wire.KindNativeGoodbye:
		m, err := wire.ParseNativeGoodbye(frames)
		if err != nil {
			return nil, malformed(err)
		}
		return node.GoodbyeHeard{Instance: from.Instance, Cause: causeOf(m.Code, side, from.Remote, m.Text)}, nil
	default:
		return nil, unused(kind)
	}
}

// unused is for messages that no event comes from.
func unused(kind wire.Kind) error {
	if kind == wire.KindUnknown || kind == wire.KindNative {
		return backend.ErrUnknown
	}
	return backend.ErrUnwanted
}

func readRegistration(frames [][]byte, native bool) (*backend.Introduction, error) {
	parse := wire.ParseMooncakeRegistration
	if native {
		parse = wire.ParseNativeMooncakeRegistration
	}
	m, err := parse(frames)
	if err != nil {
		return nil, malformed(err)
	}
	in := &backend.Introduction{Host: m.Addr.IP, Port: int(m.Addr.Port), Session: m.Session, EngineRank: m.Rank, TPSize: m.TPSize, LayerIDs: m.KVLayerIDs, Native: m.Geometry}
	for i, base := range m.KVPointers {
		item := m.KVItemLen
		if len(m.KVItemLens) > 0 {
			item = m.KVItemLens[i]
		}
		in.KV = append(in.KV, backend.Region{Base: base, Item: int(item)})
	}
	for _, base := range m.AuxPointers {
		in.Aux = append(in.Aux, backend.Region{Base: base}) // the wire does not tell the item length: it is prefill's own
	}
	for i, component := range m.StatePointers {
		var regions []backend.Region
		for k, base := range component {
			r := backend.Region{Base: base}
			if i < len(m.StateItemLens) && k < len(m.StateItemLens[i]) {
				r.Item = int(m.StateItemLens[i][k])
			}
			regions = append(regions, r)
		}
		in.State = append(in.State, regions)
	}
	return in, nil
}

func readMetadata(frames [][]byte, native bool) (node.Event, error) {
	parse := wire.ParseMooncakeMetadata
	if native {
		parse = wire.ParseNativeMooncakeMetadata
	}
	m, err := parse(frames)
	if err != nil {
		return nil, malformed(err)
	}
	return node.Metadata{Room: m.Room, Session: m.Session, Endpoint: m.Addr.Endpoint(), Native: native && m.Epoch != 0, Epoch: m.Epoch, Pages: m.Pages, Aux: m.Aux,
		State: m.StateIndices, Required: m.Required, Prefix: m.Prefix, Dummy: m.Dummy}, nil
}

// ReadDecode implements backend.Dialect.
func (Dialect) ReadDecode(frames [][]byte, from backend.From) (node.Event, string, error) {
	kind := wire.ClassifyD(wire.Mooncake, frames)
	switch kind {
	case wire.KindStatus:
		m, err := wire.ParseMooncakeStatus(frames)
		if err != nil {
			return nil, kind.String(), malformed(err)
		}
		ev := node.StatusHeard{Room: m.Room, Rank: m.Rank, Status: m.Status}
		if m.Status == room.Failed && m.Reason != "" {
			ev.Cause = room.NewCause(room.PeerFailed, room.Prefill, from.Remote, m.Reason)
		}
		return ev, kind.String(), nil
	case wire.KindAbortAck:
		m, err := wire.ParseAbortAck(frames)
		if err != nil {
			return nil, kind.String(), malformed(err)
		}
		return node.AckHeard{Room: m.Room, Rank: m.Rank, Generation: m.Generation, HasGeneration: m.HasGeneration}, kind.String(), nil
	case wire.KindNativeStatus:
		m, err := wire.ParseNativeStatus(frames)
		if err != nil {
			return nil, kind.String(), malformed(err)
		}
		ev := node.StatusHeard{Room: m.Room, Epoch: m.Epoch, Rank: m.Rank, Status: m.Status, Instance: from.Instance, Seq: m.Seq}
		if m.Status == room.Failed {
			ev.Cause = causeOf(m.Code, room.Prefill, from.Remote, m.Text)
		}
		return ev, kind.String(), nil
	case wire.KindNativeQuiescent:
		m, err := wire.ParseNativeQuiescent(frames)
		if err != nil {
			return nil, kind.String(), malformed(err)
		}
		return node.QuiescentHeard{Room: m.Room, Epoch: m.Epoch, Rank: m.Rank, Instance: from.Instance, Seq: m.Seq}, kind.String(), nil
	case wire.KindNativeQueued:
		m, err := wire.ParseNativeQueued(frames)
		if err != nil {
			return nil, kind.String(), malformed(err)
		}
		return node.QueuedHeard{Instance: from.Instance, Rank: m.Rank, Rooms: m.Rooms}, kind.String(), nil
	case wire.KindNativeRefused:
		m, err := wire.ParseNativeRefused(frames)
		if err != nil {
			return nil, kind.String(), malformed(err)
		}
		return node.StatusHeard{Room: m.Room, Epoch: m.Epoch, Rank: m.Rank, Status: room.Failed, Refused: true, Cause: causeOf(m.Code, room.Prefill, from.Remote, m.Text)}, kind.String(), nil
	default:
		ev, err := readBoth(kind, frames, room.Prefill, from)
		return ev, kind.String(), err
	}
}

// causeOf makes a cause of what a native peer told. Without a code the peer's failure itself is all that is known.
func causeOf(code room.Code, side room.Side, peer, text string) room.Cause {
	if code == 0 {
		code = room.PeerFailed
	}
	return room.NewCause(code, side, peer, text)
}

func addr(in *backend.Introduction) wire.Addr { return wire.Addr{IP: in.Host, Port: uint16(in.Port)} }

// Registration implements backend.Dialect.
func (Dialect) Registration(in *backend.Introduction, native bool) [][]byte {
	m := wire.MooncakeRegistration{Addr: addr(in), Session: in.Session, Rank: in.EngineRank, TPSize: in.TPSize, KVLayerIDs: in.LayerIDs}
	for _, r := range in.KV {
		m.KVPointers = append(m.KVPointers, r.Base)
		m.KVItemLens = append(m.KVItemLens, uint64(r.Item))
	}
	if len(in.KV) > 0 {
		m.KVItemLen = uint64(in.KV[0].Item)
	}
	for _, r := range in.Aux {
		m.AuxPointers = append(m.AuxPointers, r.Base)
	}
	for _, component := range in.State {
		var bases []uint64
		var lens []uint32
		for _, r := range component {
			bases, lens = append(bases, r.Base), append(lens, uint32(r.Item))
		}
		m.StatePointers, m.StateItemLens = append(m.StatePointers, bases), append(m.StateItemLens, lens)
		m.StateDims, m.StateLayerIDs = append(m.StateDims, nil), append(m.StateLayerIDs, nil)
	}
	if native {
		m.Geometry = in.Native
	}
	return m.AppendFrames(nil)
}

// Metadata implements backend.Dialect. Without an aux region slot 0 is named, since an empty frame would say that this is a dummy.
func (Dialect) Metadata(a node.SendMetadata, self *backend.Introduction) [][]byte {
	m := wire.MooncakeMetadata{Room: a.Room, Addr: addr(self), Session: self.Session, Pages: a.Pages, Aux: max(a.Aux, 0), StateIndices: a.State, Required: a.Required, Prefix: a.Prefix, Dummy: a.Dummy}
	if a.Native {
		m.Epoch = a.Epoch
	}
	return m.AppendFrames(nil)
}

// Abort implements backend.Dialect.
func (Dialect) Abort(a node.SendAbort, self *backend.Introduction) [][]byte {
	if a.Native {
		return wire.NativeAbort{Room: a.Room, Epoch: a.Epoch, Addr: addr(self), Seq: a.Seq, Code: a.Cause.Code, Text: a.Cause.Text}.AppendFrames(nil)
	}
	return wire.Abort{Room: a.Room, Addr: addr(self), Generation: a.Generation, HasGeneration: a.Generation != 0}.AppendFrames(nil)
}

// Status implements backend.Dialect.
func (Dialect) Status(a node.SendStatus) [][]byte {
	if a.Native {
		return wire.NativeStatus{Room: a.Room, Epoch: a.Epoch, Status: a.Status, Rank: a.Rank, Seq: a.Seq, Code: a.Cause.Code, Text: a.Cause.Text}.AppendFrames(nil)
	}
	return wire.MooncakeStatus{Room: a.Room, Status: a.Status, Rank: a.Rank}.AppendFrames(nil)
}

// Ack implements backend.Dialect.
func (Dialect) Ack(a node.SendAck) [][]byte {
	return wire.AbortAck{Room: a.Room, Rank: a.Rank, Generation: a.Generation, HasGeneration: true}.AppendFrames(nil)
}

// Quiescent implements backend.Dialect.
func (Dialect) Quiescent(a node.SendQuiescent) [][]byte {
	return wire.NativeQuiescent{Room: a.Room, Epoch: a.Epoch, Rank: a.Rank, Seq: a.Seq}.AppendFrames(nil)
}

// Receipt implements backend.Dialect.
func (Dialect) Receipt(a node.SendReceipt) [][]byte {
	return wire.NativeAck{Room: a.Room, Epoch: a.Epoch, Rank: a.Rank, Seq: a.Seq}.AppendFrames(nil)
}

// Queued implements backend.Dialect.
func (Dialect) Queued(a node.SendQueued) [][]byte {
	return wire.NativeQueued{Rank: a.Rank, Rooms: a.Rooms}.AppendFrames(nil)
}

// Goodbye implements backend.Dialect.
func (Dialect) Goodbye(a node.SendGoodbye) [][]byte {
	return wire.NativeGoodbye{Code: a.Cause.Code, Text: a.Cause.Text}.AppendFrames(nil)
}

// Refused implements backend.Dialect.
func (Dialect) Refused(a node.SendRefused) [][]byte {
	return wire.NativeRefused{Room: a.Room, Epoch: a.Epoch, Rank: a.Rank, Code: a.Cause.Code, Text: a.Cause.Text}.AppendFrames(nil)
}
