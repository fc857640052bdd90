package drill

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

// TestMain is a rank process when it is told to be one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "drill-rank" {
		if err := Serve(context.Background(), os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func self(t *testing.T) []string {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{path, "drill-rank"}
}

func TestRoomsPassTheProxies(t *testing.T) {
	n := newNursery()
	defer n.close()
	for _, tp := range []map[side]int{{sideP: 1, sideD: 1}, {sideP: 2, sideD: 1}, {sideP: 1, sideD: 2}} {
		p, err := newPair(t.Context(), self(t), n, "tcp", tp, "")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := p.whole(t.Context()); err != nil {
				t.Error(err)
			}
		}
		for _, r := range p.all() {
			for end := time.Now().Add(patience); ; { // acknowledgements are still under way
				w, err := r.do(t.Context(), order{Op: "tables"})
				if err == nil && *w.Tables == (tables{}) {
					break
				}
				if err != nil || time.Now().After(end) {
					t.Fatalf("%s: %+v %v, want empty tables", r.name, w.Tables, err)
				}
			}
			if _, err := r.do(t.Context(), order{Op: "guards"}); err != nil {
				t.Error(err)
			}
		}
		p.close()
	}
}
