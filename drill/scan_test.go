package drill

import (
	"bytes"
	"testing"

	"github.com/kvferry/kvferry/kvlayout"
)

func drain(s scanner, in []byte, step int) (out []byte, messages, payload int) {
	for len(in) > 0 {
		n := min(step, len(in))
		s.feed(in[:n])
		in = in[n:]
		for p, ok := s.next(); ok; p, ok = s.next() {
			out = append(out, p.raw...)
			if p.frames != nil {
				messages++
			}
			if p.payload {
				payload += len(p.raw)
			}
		}
	}
	return out, messages, payload
}

func TestScannersPassEveryByte(t *testing.T) {
	zmtp := append(make([]byte, 64), 4, 1, 'x', 1, 2, 'a', 'b', 0, 1, 'c', 0, 0)
	data := make([]byte, 24+32+24+5)
	data[16] = dataHello
	data[56], data[56+16] = 5, 0x81
	table := make([]byte, 64+3+64)
	table[0], table[8], table[16], table[17] = 3, 1, dataTable, dataSums
	data = append(data, table...)
	data = append(data, data[56:56+24+5]...)
	for step := 1; step < 90; step++ {
		out, messages, _ := drain(&zmtpScanner{}, zmtp, step)
		if !bytes.Equal(out, zmtp) || messages != 2 {
			t.Fatalf("step %d: %d messages of %d bytes, want 2 of %d", step, messages, len(out), len(zmtp))
		}
		out, _, payload := drain(&dataScanner{}, data, step)
		if !bytes.Equal(out, data) || payload != 5+3+5 {
			t.Fatalf("step %d: payload %d of %d bytes, want 13 of %d", step, payload, len(out), len(data))
		}
	}
}

func TestStampTellsWhose(t *testing.T) {
	s := shapeOf(kvlayout.Geometry{PageSize: pageSize, KVHeads: kvHeads, HeadBytes: headBytes, TP: 2, TPRank: 1})
	b := make([]byte, pageSize*kvHeads/2*headBytes)
	own := stamp{room: 7, life: 8, chunk: 1, page: 2}
	s.write(b, 3, own)
	if err := s.check(b, 3, own); err != nil {
		t.Fatal(err)
	}
	for _, w := range []stamp{{7, 9, 1, 2}, {7, 8, 0, 2}, guard} {
		if s.check(b, 3, w) == nil {
			t.Errorf("%+v passes for %+v", own, w)
		}
	}
}
