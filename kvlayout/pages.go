package kvlayout

import "fmt"

// Run is a stretch of pages that is contiguous on both sides.
type Run struct {
	Src, Dst int32 // first page on each side
	Len      int   // pages, at least 1
}

// AppendRuns appends the longest runs of two page lists of one length, in their order. As in SGLang, where the state lists of one side may be
// empty, an empty list on either side gives no runs; other lists of unequal length are refused with ErrPages. (Plan.Fragments refuses both.)
func AppendRuns(dst []Run, src, pages []int32) ([]Run, error) {
	if len(src) == 0 || len(pages) == 0 {
		return dst, nil
	}
	if len(src) != len(pages) {
		return dst, fmt.Errorf("%w: %d of prefill for %d of decode", ErrPages, len(src), len(pages))
	}
	for i := 0; i < len(src); {
		n := runLen(src[i:], pages[i:])
		dst = append(dst, Run{Src: src[i], Dst: pages[i], Len: n})
		i += n
	}
	return dst, nil
}

// runLen is the length of the run at the start of two lists of one length, which are not empty.
func runLen(a, b []int32) int {
	n := 1
	for n < len(a) && int64(a[n]) == int64(a[n-1])+1 && int64(b[n]) == int64(b[n-1])+1 {
		n++
	}
	return n
}

// Pages is the number of pages in runs.
func Pages(runs []Run) int {
	n := 0
	for _, r := range runs {
		n += r.Len
	}
	return n
}

// PageCount is the number of pages that hold tokens; the last one may be partial.
func PageCount(tokens, pageSize int) int { return (tokens + pageSize - 1) / pageSize }

// Window is a stretch of decode's page list, [From, To), counted from the first page after the prefix that decode holds already.
type Window struct{ From, To int }

// Len is the number of pages.
func (w Window) Len() int { return w.To - w.From }

// RoomPages returns how many pages decode publishes for a prompt of which it holds a prefix already, both in tokens. The prefix must be
// whole pages and not longer than the prompt.
func RoomPages(prompt, prefix, pageSize int) (int, error) {
	switch {
	case pageSize < 1:
		return 0, fmt.Errorf("%w: page size %d, want at least 1 token", ErrPages, pageSize)
	case prefix < 0 || prefix > prompt:
		return 0, fmt.Errorf("%w: prefix of %d tokens, want 0 to the prompt's %d", ErrPages, prefix, prompt)
	case prefix%pageSize != 0:
		return 0, fmt.Errorf("%w: prefix of %d tokens, want a multiple of the page size %d", ErrPages, prefix, pageSize)
	}
	return PageCount(prompt-prefix, pageSize), nil
}

// ChunkWindow returns which pages become complete by computing tokens [from, to) of a prompt: a page that to cuts waits for the next chunk,
// unless this one is the last. The windows of successive chunks adjoin and together are RoomPages long. prefix is what decode holds, a
// multiple of pageSize; chunks below it have an empty window.
func ChunkWindow(prefix, from, to int, last bool, pageSize int) (Window, error) {
	if _, err := RoomPages(max(to, prefix), prefix, pageSize); err != nil {
		return Window{}, err
	}
	if from < 0 || to < from {
		return Window{}, fmt.Errorf("%w: chunk of tokens [%d, %d)", ErrPages, from, to)
	}
	skip := prefix / pageSize
	end := to / pageSize
	if last {
		end = PageCount(to, pageSize)
	}
	w := Window{From: max(0, from/pageSize-skip), To: max(0, end-skip)}
	w.To = max(w.From, w.To) // nothing is complete yet
	return w, nil
}

// CPWindow returns which part of a chunk's window prefill CP rank of size sends when decode takes from all of them: the room's pages are
// cut into contiguous shares, those left over go to the first ranks. An empty part lies at the chunk's start.
func CPWindow(roomPages int, chunk Window, rank, size int) Window {
	if size <= 1 {
		return chunk
	}
	base, rest := roomPages/size, roomPages%size
	from := rank*base + min(rank, rest)
	to := from + base
	if rank < rest {
		to++
	}
	w := Window{From: max(from, chunk.From), To: min(to, chunk.To)}
	if w.To <= w.From {
		return Window{From: chunk.From, To: chunk.From}
	}
	return w
}

// AppendShard appends what rank of size sends of a chunk when the pages of prefill's KV are spread by number: page n lies on rank n mod size
// as that rank's page n / size. local gets the rank's own page numbers, positions their places in decode's page list.
func AppendShard(local []int32, positions []int, pages []int32, chunk Window, rank, size int) ([]int32, []int, error) {
	if len(pages) != chunk.Len() {
		return local, positions, fmt.Errorf("%w: %d in a window of %d", ErrPages, len(pages), chunk.Len())
	}
	if size < 1 || rank < 0 || rank >= size {
		return local, positions, fmt.Errorf("%w: shard %d of %d", ErrGeometry, rank, size)
	}
	for i, n := range pages {
		if int(n)%size == rank {
			local = append(local, n/int32(size))
			positions = append(positions, chunk.From+i)
		}
	}
	return local, positions, nil
}
