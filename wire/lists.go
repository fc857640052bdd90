package wire

import (
	"encoding/binary"
	"unsafe"
)

// number is the element of a packed list. Lists are little endian: SGLang packs in the machine's order, and runs on no other machine.
type number interface{ int32 | uint32 | uint64 }

func width[T number]() int {
	return int(unsafe.Sizeof(T(0)))
}

func decode[T number](b []byte, w int) T {
	if w == 8 {
		return T(binary.LittleEndian.Uint64(b))
	}
	return T(binary.LittleEndian.Uint32(b))
}

func appendNumbers[T number](b []byte, list []T) []byte {
	if width[T]() == 8 {
		for _, v := range list {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
		return b
	}
	for _, v := range list {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// readList reads a frame of packed numbers, at most most of them; nil for an empty frame.
func readList[T number](r *reader, i int, frame string, most int) []T {
	b := r.at(i)
	if r.err != nil || len(b) == 0 {
		return nil
	}
	w := width[T]()
	if len(b)%w != 0 {
		r.fail(i, frame, ErrTruncated, "%d bytes, want a multiple of %d", len(b), w)
		return nil
	}
	if len(b)/w > most {
		r.fail(i, frame, ErrRange, "%d numbers, want at most %d", len(b)/w, most)
		return nil
	}
	list := make([]T, len(b)/w)
	for k := range list {
		list[k] = decode[T](b[k*w:], w)
	}
	return list
}

// readPages reads a list of page numbers, which are not negative.
func readPages(r *reader, i int, frame string) []int32 {
	list := readList[int32](r, i, frame, MaxPages)
	for k, p := range list {
		if p < 0 {
			r.fail(i, frame, ErrRange, "page %d at position %d, want 0 to %d", p, k, MaxPage)
			return nil
		}
	}
	return list
}

// readLists reads packed lists: u32 n, n × u32 byte length, then the lists' bytes. They must fill the frame to the byte: SGLang cuts
// lengths beyond the end silently and ignores a rest, so neither is ever meant. nil for an empty frame and for no lists.
func readLists[T number](r *reader, i int, frame string, mostLists, mostNumbers int) [][]T {
	b := r.at(i)
	if r.err != nil || len(b) == 0 {
		return nil
	}
	if len(b) < 4 {
		r.fail(i, frame, ErrTruncated, "%d bytes, want at least 4", len(b))
		return nil
	}
	w := width[T]()
	n := int64(binary.LittleEndian.Uint32(b))
	lens := b[4:]
	switch {
	case n > int64(mostLists):
		r.fail(i, frame, ErrRange, "%d lists, want at most %d", n, mostLists)
		return nil
	case n*4 > int64(len(lens)):
		r.fail(i, frame, ErrTruncated, "%d bytes, want at least %d for the lengths of %d lists", len(b), 4+4*n, n)
		return nil
	}
	data := lens[4*n:]
	var total int64
	for k := int64(0); k < n; k++ {
		size := int64(binary.LittleEndian.Uint32(lens[4*k:]))
		if size%int64(w) != 0 {
			r.fail(i, frame, ErrTruncated, "list %d has %d bytes, want a multiple of %d", k, size, w)
			return nil
		}
		total += size
	}
	switch {
	case total > int64(mostNumbers)*int64(w):
		r.fail(i, frame, ErrRange, "%d numbers, want at most %d", total/int64(w), mostNumbers)
		return nil
	case total > int64(len(data)):
		r.fail(i, frame, ErrTruncated, "%d bytes of lists, want %d", len(data), total)
		return nil
	case total < int64(len(data)):
		r.fail(i, frame, ErrRange, "%d bytes after the last list, want none", int64(len(data))-total)
		return nil
	case n == 0:
		return nil
	}
	lists, all := make([][]T, n), make([]T, total/int64(w))
	for k := range all {
		all[k] = decode[T](data[k*w:], w)
	}
	for k := range lists {
		m := int(binary.LittleEndian.Uint32(lens[4*k:])) / w
		if m > 0 {
			lists[k], all = all[:m:m], all[m:]
		}
	}
	return lists
}

func writeList[T number](w *Writer, list []T) {
	n := len(w.buf)
	w.buf = appendNumbers(w.buf, list)
	w.end(n)
}

// writeLists packs lists; no list at all is an empty frame.
func writeLists[T number](w *Writer, lists [][]T) {
	n := len(w.buf)
	w.buf = appendLists(w.buf, lists)
	w.end(n)
}

func appendLists[T number](b []byte, lists [][]T) []byte {
	if len(lists) == 0 {
		return b
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(lists)))
	for _, l := range lists {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(l)*width[T]()))
	}
	for _, l := range lists {
		b = appendNumbers(b, l)
	}
	return b
}
