package event

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kvferry/kvferry/room"
)

func TestJSONRoundTrip(t *testing.T) {
	for k := Opened; k < endKind; k++ {
		e := Event{At: time.Unix(5, 7), Kind: k, Side: room.Decode, Rank: 2, Room: room.MaxID, Peer: "p", Chunk: -1, Pages: 3, Bytes: 1 << 40,
			Status: room.Failed, Cause: room.NewCause(room.PeerDead, room.Decode, "p", "x"), Note: "n"}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var back Event
		if err := json.Unmarshal(b, &back); err != nil || !back.At.Equal(e.At) {
			t.Fatalf("%s: %v", b, err)
		}
		back.At = e.At
		if back != e || k.String() == "" {
			t.Errorf("%s became %+v", b, back)
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	l := NewLog(4)
	sink := Tee(nil, l.Add)
	for i := range 10 {
		sink.Emit(Event{Kind: Opened, Room: room.ID(i % 2), Chunk: i})
	}
	if l.Overwritten() != 6 {
		t.Errorf("overwritten %d, want 6", l.Overwritten())
	}
	got := l.Room(1)
	if len(got) != 2 || got[0].Chunk != 7 || got[1].Chunk != 9 {
		t.Errorf("room 1: %+v", got)
	}
	_, added := l.Select(func(Event) bool { return false })
	l.Add(Event{Kind: Finished})
	select {
	case <-added:
	default:
		t.Error("a reader is not told of a new event")
	}
}
