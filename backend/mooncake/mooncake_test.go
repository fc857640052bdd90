package mooncake

import (
	"errors"
	"reflect"
	"testing"

	"github.com/kvferry/kvferry/backend"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

var (
	d       Dialect
	native  = backend.From{Instance: room.InstanceID{1}, Remote: "10.0.0.2:5"}
	foreign = backend.From{Remote: "10.0.0.2:5"}
	self    = &backend.Introduction{Host: "2001:db8::7", Port: 7002, Session: "[2001:db8::7]:15001", KV: []backend.Region{{Base: 1 << 54, Item: 1024}, {Base: 2 << 54, Item: 1024}},
		Aux: []backend.Region{{Base: 3 << 54, Item: 64}}, State: [][]backend.Region{{{Base: 4 << 54, Item: 32}}}, EngineRank: 1, TPSize: 2, Native: []byte(`{"a":1}`)}
	cause = room.NewCause(room.ClientGone, room.Decode, "", "left")
)

const (
	id       = room.MaxID - 6
	endpoint = "tcp://[2001:db8::7]:7002"
)

func TestRegistration(t *testing.T) {
	for _, from := range []backend.From{native, foreign} {
		isNative := from == native
		frames := d.Registration(self, isNative)
		if want := map[bool]int{true: 21, false: 20}[isNative]; len(frames) != want {
			t.Errorf("native %v: %d frames, want %d", isNative, len(frames), want)
		}
		ev, in, kind, err := d.ReadPrefill(frames, from)
		want := *self
		want.Aux = []backend.Region{{Base: 3 << 54}} // the wire has no item length of aux regions
		if !isNative {
			want.Native = nil
		}
		if err != nil || ev != nil || kind != "registration" || !reflect.DeepEqual(*in, want) {
			t.Errorf("native %v: %v %s %v\n%+v, want\n%+v", isNative, ev, kind, err, in, want)
		}
	}
	// What a foreign peer sends as frame 20 is not a geometry.
	if _, in, _, err := d.ReadPrefill(d.Registration(self, true), foreign); err != nil || in.Native != nil {
		t.Errorf("%v %q", err, in.Native)
	}
}

// What decode writes is what prefill reads, and a foreign peer gets SGLang's frames and no more.
func TestToPrefill(t *testing.T) {
	meta := node.SendMetadata{Room: id, Epoch: 9, Pages: []int32{1 << 30, 5}, Aux: 3, State: [][]int32{{2}}, Prefix: 32, Required: 2}
	dummy := node.SendMetadata{Room: id, Epoch: 9, Aux: -1, Required: 2, Dummy: true}
	wantMeta := node.Metadata{Room: id, Session: self.Session, Endpoint: endpoint, Pages: meta.Pages, Aux: 3, State: meta.State, Required: 2, Prefix: 32}
	wantDummy := node.Metadata{Room: id, Session: self.Session, Endpoint: endpoint, Aux: -1, Required: 2, Dummy: true}
	nat := func(m node.Metadata) node.Metadata { m.Native, m.Epoch = true, 9; return m }
	for name, c := range map[string]struct {
		frames [][]byte
		n      int
		from   backend.From
		want   node.Event
	}{
		"metadata":        {d.Metadata(meta, self), 10, foreign, wantMeta},
		"native metadata": {d.Metadata(func() node.SendMetadata { m := meta; m.Native = true; return m }(), self), 11, native, nat(wantMeta)},
		"dummy":           {d.Metadata(dummy, self), 10, foreign, wantDummy},
		"native dummy":    {d.Metadata(func() node.SendMetadata { m := dummy; m.Native = true; return m }(), self), 11, native, nat(wantDummy)},
		"abort": {d.Abort(node.SendAbort{Room: id, Generation: 4, Cause: cause}, self), 5, foreign,
			node.AbortHeard{Room: id, Endpoint: endpoint, Generation: 4, HasGeneration: true}},
		"abort of nothing": {d.Abort(node.SendAbort{Room: id}, self), 4, foreign, node.AbortHeard{Room: id, Endpoint: endpoint}},
		"native abort": {d.Abort(node.SendAbort{Native: true, Room: id, Epoch: 9, Generation: 4, Cause: cause, Seq: 6}, self), 9, native,
			node.AbortHeard{Room: id, Epoch: 9, Endpoint: endpoint, Cause: room.NewCause(room.ClientGone, room.Decode, endpoint, "left"), Seq: 6}},
		"receipt": {d.Receipt(node.SendReceipt{Room: id, Epoch: 9, Rank: 3, Seq: 6}), 6, native, node.ReceiptHeard{Room: id, Seq: 6}},
		"goodbye": {d.Goodbye(node.SendGoodbye{Cause: cause}), 4, native,
			node.GoodbyeHeard{Instance: native.Instance, Cause: room.NewCause(room.ClientGone, room.Decode, native.Remote, "left")}},
	} {
		ev, in, _, err := d.ReadPrefill(c.frames, c.from)
		if err != nil || in != nil || !reflect.DeepEqual(ev, c.want) || len(c.frames) != c.n {
			t.Errorf("%s: %d frames, %v\n%+v, want\n%+v", name, len(c.frames), err, ev, c.want)
		}
	}
}

func TestToDecode(t *testing.T) {
	told := room.NewCause(room.ClientGone, room.Prefill, native.Remote, "left")
	for name, c := range map[string]struct {
		frames [][]byte
		n      int
		want   node.Event
	}{
		"success": {d.Status(node.SendStatus{Room: id, Status: room.Success, Rank: 3}), 3, node.StatusHeard{Room: id, Status: room.Success, Rank: 3}},
		"failed":  {d.Status(node.SendStatus{Room: id, Status: room.Failed, Rank: 3, Cause: cause}), 3, node.StatusHeard{Room: id, Status: room.Failed, Rank: 3}},
		"native failed": {d.Status(node.SendStatus{Native: true, Room: id, Epoch: 9, Status: room.Failed, Rank: 3, Cause: cause, Seq: 6}), 9,
			node.StatusHeard{Room: id, Epoch: 9, Status: room.Failed, Rank: 3, Cause: told, Instance: native.Instance, Seq: 6}},
		"native success": {d.Status(node.SendStatus{Native: true, Room: id, Epoch: 9, Status: room.Success, Rank: 3}), 9,
			node.StatusHeard{Room: id, Epoch: 9, Status: room.Success, Rank: 3, Instance: native.Instance}},
		"queued":    {d.Queued(node.SendQueued{Rank: 3, Rooms: []room.ID{id, 4}}), 5, node.QueuedHeard{Instance: native.Instance, Rank: 3, Rooms: []room.ID{id, 4}}},
		"receipt":   {d.Receipt(node.SendReceipt{Room: id, Epoch: 9, Rank: 3, Seq: 6}), 6, node.ReceiptHeard{Room: id, Seq: 6}},
		"goodbye":   {d.Goodbye(node.SendGoodbye{Cause: cause}), 4, node.GoodbyeHeard{Instance: native.Instance, Cause: told}},
		"ack":       {d.Ack(node.SendAck{Room: id, Rank: 3, Generation: 4}), 4, node.AckHeard{Room: id, Rank: 3, Generation: 4, HasGeneration: true}},
		"quiescent": {d.Quiescent(node.SendQuiescent{Room: id, Epoch: 9, Rank: 3, Seq: 6}), 6, node.QuiescentHeard{Room: id, Epoch: 9, Rank: 3, Instance: native.Instance, Seq: 6}},
		"refused": {d.Refused(node.SendRefused{Room: id, Epoch: 9, Rank: 3, Cause: cause}), 7,
			node.StatusHeard{Room: id, Epoch: 9, Status: room.Failed, Rank: 3, Refused: true, Cause: told}},
	} {
		ev, _, err := d.ReadDecode(c.frames, native)
		if err != nil || !reflect.DeepEqual(ev, c.want) || len(c.frames) != c.n {
			t.Errorf("%s: %d frames, %v\n%+v, want\n%+v", name, len(c.frames), err, ev, c.want)
		}
	}
	// A reason that a Mooncake peer adds is read.
	ev, _, err := d.ReadDecode(append(d.Status(node.SendStatus{Room: id, Status: room.Failed, Rank: 3}), []byte("no memory")), foreign)
	if s, ok := ev.(node.StatusHeard); err != nil || !ok || s.Cause.Code != room.PeerFailed || s.Cause.Text != "no memory" {
		t.Errorf("%+v, %v", ev, err)
	}
}

func frames(texts ...string) (list [][]byte) {
	for _, s := range texts {
		list = append(list, []byte(s))
	}
	return list
}

func TestWhatIsDropped(t *testing.T) {
	for _, c := range []struct {
		frames [][]byte
		p, d   error
	}{
		{nil, backend.ErrUnknown, backend.ErrUnknown},
		{frames(""), backend.ErrUnknown, backend.ErrUnknown},
		{frames("junk"), backend.ErrUnknown, backend.ErrUnknown},
		{frames("GET / HTTP/1.1\r\n\r\n"), backend.ErrUnknown, backend.ErrUnknown},
		{frames("KVFERRY", "NEWS", "1"), backend.ErrUnknown, backend.ErrUnknown},
		{frames("None", "10.0.0.1"), backend.ErrMalformed, backend.ErrUnknown},
		{frames("1", "10.0.0.1", "70000", "s", "\x01\x02\x03", "1", "", "1"), backend.ErrMalformed, backend.ErrMalformed},
		{frames("ABORT", "x"), backend.ErrMalformed, backend.ErrUnknown},
		{frames("KVFERRY", "ABORT", "1"), backend.ErrMalformed, backend.ErrUnknown},
		{frames("7", "4"), backend.ErrMalformed, backend.ErrMalformed},
		{frames("ABORT_ACK", "7"), backend.ErrUnknown, backend.ErrMalformed},
		{frames("KVFERRY", "STATUS", "7"), backend.ErrUnknown, backend.ErrMalformed},
		{frames("STAGING_RSP", "1", "0", "0", "0", "1", "s"), backend.ErrUnwanted, backend.ErrUnknown},
		{frames("BOOTSTRAP", "7", "10.0.0.1", "1"), backend.ErrUnwanted, backend.ErrUnknown},
		{frames("AUX_DATA", "7", "0", "0", "\x00\x00\x00\x01", "x"), backend.ErrUnknown, backend.ErrUnwanted},
		{frames("CHUNK_READY", "7", "0", "0", "1", "s", "0"), backend.ErrUnknown, backend.ErrUnwanted},
	} {
		ev, in, kind, err := d.ReadPrefill(c.frames, foreign)
		if ev != nil || in != nil || kind == "" || !errors.Is(err, c.p) {
			t.Errorf("prefill %q: %v %v %q %v, want %v", c.frames, ev, in, kind, err, c.p)
		}
		ev, kind, err = d.ReadDecode(c.frames, foreign)
		if ev != nil || kind == "" || !errors.Is(err, c.d) {
			t.Errorf("decode %q: %v %q %v, want %v", c.frames, ev, kind, err, c.d)
		}
	}
}

// cut makes frames of fuzz input: 0xff separates them.
func cut(b []byte) (list [][]byte) {
	from := 0
	for i, c := range b {
		if c == 0xff {
			list, from = append(list, b[from:i]), i+1
		}
	}
	return append(list, b[from:])
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{"", "None\xff10.0.0.1\xff1", "7\xff4\xff0", "ABORT\xff7\xff10.0.0.1\xff1\xff2", "KVFERRY\xffSTATUS\xff7\xff1\xff0\xff0\xff1\xffpeer_dead\xffx", "ABORT_ACK\xff7\xff0\xff1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, from := range []backend.From{native, foreign} {
			ev, in, kind, err := d.ReadPrefill(cut(b), from)
			if (ev != nil || in != nil) == (err != nil) || kind == "" {
				t.Fatalf("%q: %v %v %q %v", b, ev, in, kind, err)
			}
			ev, kind, err = d.ReadDecode(cut(b), from)
			if (ev != nil) == (err != nil) || kind == "" {
				t.Fatalf("%q: %v %q %v", b, ev, kind, err)
			}
		}
	})
}
