package room_test

import (
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
	"github.com/kvferry/kvferry/room"
)

var statusNames = map[string]room.Status{"absent": room.Absent, "Failed": room.Failed, "Bootstrapping": room.Bootstrapping, "WaitingForInput": room.WaitingForInput,
	"Transferring": room.Transferring, "Success": room.Success}

func TestUpdateStatusVector(t *testing.T) {
	type line struct {
		Current string `json:"current"`
		Status  string `json:"status"`
		Result  string `json:"result"`
	}
	vectors.Each(t, "update_status", func(t testing.TB, n int, v line) {
		cur, ok1 := statusNames[v.Current]
		rep, ok2 := statusNames[v.Status]
		want, ok3 := statusNames[v.Result]
		if !ok1 || !ok2 || !ok3 {
			t.Fatalf("line %d: unknown status in %+v", n, v)
		}
		if got := room.Next(cur, rep); got != want {
			t.Errorf("line %d: Next(%v, %v) = %v, want %v", n, cur, rep, got, want)
		}
	})
}
