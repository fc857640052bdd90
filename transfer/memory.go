package transfer

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Memory is page-aligned memory outside of the Go heap: it does not move and costs the garbage collector nothing.
type Memory struct {
	mu sync.Mutex
	b  []byte
}

// NewMemory maps size bytes of zeroed memory. Pages that are never touched take none of the machine's.
func NewMemory(size int) (*Memory, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: memory of %d bytes, want at least 1", ErrInvalid, size)
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return &Memory{b: b}, nil
}

// Bytes is the memory, nil after Close.
func (m *Memory) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.b
}

// Close unmaps the memory: whoever touches it afterwards ends the process, so engines must have let go of it. Once more it does nothing.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.b
	m.b = nil
	if b == nil {
		return nil
	}
	return unix.Munmap(b)
}
