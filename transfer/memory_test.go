package transfer_test

import (
	"errors"
	"testing"

	"github.com/kvferry/kvferry/transfer"
)

func TestMemory(t *testing.T) {
	for _, size := range []int{0, -1} {
		if _, err := transfer.NewMemory(size); !errors.Is(err, transfer.ErrInvalid) {
			t.Errorf("%d bytes: %v, want ErrInvalid", size, err)
		}
	}
	m, err := transfer.NewMemory(100_001)
	if err != nil {
		t.Fatal(err)
	}
	b := m.Bytes()
	if len(b) != 100_001 {
		t.Errorf("%d bytes", len(b))
	}
	for i := range b {
		if b[i] != 0 {
			t.Fatalf("byte %d is %d", i, b[i])
		}
		b[i] = byte(i)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if m.Bytes() != nil {
		t.Error("memory after Close")
	}
}
