package mem_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/mem"
	"github.com/kvferry/kvferry/transfer/transfertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fabric struct{ *mem.Network }

func (f fabric) New(t *testing.T, native bool) transfer.Engine {
	e := f.Network.New(mem.Config{Foreign: !native})
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

func (f fabric) Junk(string, []byte) error { return transfer.ErrUnsupported }

func TestEngine(t *testing.T) {
	transfertest.Run(t, transfertest.Config{
		Capabilities: transfer.Capabilities{ReceiverApplied: true, VirtualPages: true, Confirmed: true, CancelProves: true},
		New:          func(*testing.T) transfertest.Fabric { return fabric{mem.NewNetwork()} },
	})
}

// A stalled peer holds a batch in fake time too: no goroutine of the engine keeps the clock from going on.
func TestInFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := mem.NewNetwork()
		from, to := n.New(mem.Config{}), n.New(mem.Config{})
		r, err := to.Register(make([]byte, 4096), 512)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := to.Open(transfer.Grant{Windows: []transfer.Window{{Region: r, Items: []int32{1}}}}); err != nil {
			t.Fatal(err)
		}
		resume := n.Stall(to.Name(), 0)
		h, err := from.Write(to.Name(), []transfer.Fragment{{Src: make([]byte, 512), Dst: r.Base() + 512}})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		time.AfterFunc(time.Hour, resume)
		<-h.Settled()
		if h.Err() != nil || time.Since(begin) != time.Hour {
			t.Errorf("%v after %v", h.Err(), time.Since(begin))
		}
		for _, e := range []*mem.Engine{from, to} {
			if err := e.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
