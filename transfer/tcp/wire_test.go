package tcp

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// The bytes of this file are those that Mooncake's engine sends and takes (HEAD of 2026-08-22), from a recording.

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenBytes(t *testing.T) {
	head := unhex(t, "0a00000000000000 0090a11506000000 8100000000000000")
	h := header{size: 10, addr: 0x615a19000, op: opWrite | flagV2}
	if got := appendHeader(nil, h); !bytes.Equal(got, head) {
		t.Errorf("header is % x, want % x", got, head)
	}
	garbage := unhex(t, "0a00000000000000 0090a11506000000 81deadbeef012345")
	if got := parseHeader(garbage); got.size != h.size || got.addr != h.addr || got.op != h.op {
		t.Errorf("header with garbage padding is %+v", got)
	}
	for code, want := range map[uint32]string{statusOK: "00 00 00 00 56 54 43 4d", statusRejected: "01 00 00 00 56 54 43 4d"} {
		if got := appendStatus(nil, code); !bytes.Equal(got, unhex(t, want)) {
			t.Errorf("status %d is % x, want %s", code, got, want)
		}
		if got, err := parseStatus(unhex(t, want)); err != nil || got != code {
			t.Errorf("%s is status %d, %v", want, got, err)
		}
	}
	if _, err := parseStatus(unhex(t, "00 00 00 00 56 54 43 4e")); !errors.Is(err, errStatus) {
		t.Errorf("a status without the magic: %v", err)
	}
	for _, c := range []struct {
		typ  byte
		want string
	}{{typeProbe, "03 00 00 00 00 00 00 00 03 7b 7d"}, {typeOld, "02 00 00 00 00 00 00 00 7b 7d"}} {
		want := unhex(t, c.want)
		if got := appendControl(nil, c.typ, []byte("{}")); !bytes.Equal(got, want) {
			t.Errorf("control message is % x, want % x", got, want)
		}
		typ, body, err := readControl(iotest.OneByteReader(bytes.NewReader(want)))
		if err != nil || typ != c.typ || string(body) != "{}" {
			t.Errorf("% x is type %d, %q, %v", want, typ, body, err)
		}
	}
}

func TestControlMessagesThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want error
	}{
		"no bytes":          {"", io.EOF},
		"half a length":     {"03 00 00", io.ErrUnexpectedEOF},
		"length 0":          {"00 00 00 00 00 00 00 00", errControl},
		"length 2^63-1":     {"ff ff ff ff ff ff ff 7f 03", errControl},
		"a byte too long":   {"01 00 10 00 00 00 00 00 03", errControl},
		"cut":               {"05 00 00 00 00 00 00 00 03 7b", io.ErrUnexpectedEOF},
		"a negative type":   {"01 00 00 00 00 00 00 00 80", errControl},
		"HTTP":              {hex.EncodeToString([]byte("GET / HTTP/1.1\r\n\r\n")), errControl},
		"a TLS ClientHello": {"16 03 01 02 00 01 00 01 fc 03", errControl},
	} {
		if _, _, err := readControl(bytes.NewReader(unhex(t, c.in))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// sample is what Mooncake HEAD says about a TCP segment.
const sample = `{"buffers":[{"addr":18446744073709551615,"length":67108864,"name":"10.0.0.7:15492"}],
 "name":"10.0.0.7:15492","protocol":"tcp","tcp_data_port":16733,"tcp_proto_version":2,"timestamp":"2026-08-22 05:39:32.542873"}` + "\n"

func TestDescriptors(t *testing.T) {
	edit := func(old, new string) string {
		if !strings.Contains(sample, old) {
			t.Fatalf("the sample has no %s", old)
		}
		return strings.Replace(sample, old, new, 1)
	}
	for name, c := range map[string]struct {
		in   string
		addr string
		ver  count
		bad  bool
	}{
		"HEAD":               {sample, "10.0.0.7:16733", 2, false},
		"0.3.11":             {edit(`"tcp_proto_version":2,`, ""), "10.0.0.7:16733", 0, false},
		"a later version":    {edit(`version":2`, `version":3`), "10.0.0.7:16733", 3, false},
		"data host":          {edit(`"protocol"`, `"tcp_data_host":"10.9.9.9","protocol"`), "10.9.9.9:16733", 2, false},
		"empty data host":    {edit(`"protocol"`, `"tcp_data_host":"","protocol"`), "10.0.0.7:16733", 2, false},
		"IPv6":               {edit(`"name":"10.0.0.7:15492","protocol"`, `"name":"[fe80::1]:15492","protocol"`), "[fe80::1]:16733", 2, false},
		"no name":            {edit(`"name":"10.0.0.7:15492","protocol"`, `"protocol"`), "dialled:16733", 2, false},
		"no buffers":         {edit(`"buffers":[{"addr":18446744073709551615,"length":67108864,"name":"10.0.0.7:15492"}],`, ""), "10.0.0.7:16733", 2, false},
		"an integral float":  {edit(`16733`, `16733.0`), "10.0.0.7:16733", 2, false},
		"unknown keys":       {edit(`"protocol"`, `"x":{"y":[1]},"protocol"`), "10.0.0.7:16733", 2, false},
		"several protocols":  {edit(`"tcp",`, `["hip","tcp"],`), "10.0.0.7:16733", 2, false},
		"rdma":               {edit(`"tcp",`, `"rdma",`), "", 0, true},
		"no protocol":        {edit(`"protocol":"tcp",`, ""), "", 0, true},
		"protocol a number":  {edit(`"tcp",`, `7,`), "", 0, true},
		"protocols, no tcp":  {edit(`"tcp",`, `["hip"],`), "", 0, true},
		"no data port":       {edit(`"tcp_data_port":16733,`, ""), "", 0, true},
		"data port a string": {edit(`16733`, `"16733"`), "", 0, true},
		"data port 0":        {edit(`16733`, `0`), "", 0, true},
		"data port 65536":    {edit(`16733`, `65536`), "", 0, true},
		"data port 1.5":      {edit(`16733`, `1.5`), "", 0, true},
		"a list":             {`[]`, "", 0, true},
		"no JSON":            {`{"name":`, "", 0, true},
		"a short instance":   {edit(`"protocol"`, `"kvferry_instance":"00","protocol"`), "", 0, true},
	} {
		d, err := readDescriptor([]byte(c.in))
		switch {
		case c.bad:
			if err == nil {
				t.Errorf("%s: %+v, want an error", name, d)
			}
		case err != nil || d == nil:
			t.Errorf("%s: %v", name, err)
		case d.dataAddr("dialled:1") != c.addr || d.ProtoVersion != c.ver || d.Native != 0:
			t.Errorf("%s: %+v at %s", name, d, d.dataAddr("dialled:1"))
		}
	}
	if d, err := readDescriptor([]byte("null\n")); d != nil || err != nil {
		t.Errorf("null: %v, %v", d, err)
	}
}

func TestOwnDescriptorIsReadAgain(t *testing.T) {
	e := start(t, Config{Advertise: "10.1.2.3", AdvertisePort: 7, AdvertiseDataPort: 8})
	if e.Name() != "10.1.2.3:7" {
		t.Errorf("name %q", e.Name())
	}
	r, err := e.Register(make([]byte, 3000), 1000)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(e.describe())
	if err != nil {
		t.Fatal(err)
	}
	d, err := readDescriptor(text)
	if err != nil {
		t.Fatal(err)
	}
	if d.dataAddr("x:1") != "10.1.2.3:8" || d.ProtoVersion != 2 || d.Native != sumsFrom || *d.Instance != e.Instance() {
		t.Errorf("%s is %+v", text, d)
	}
	if want := fmt.Sprintf(`"addr":%d,"length":`, r.Base()); !bytes.Contains(text, []byte(want)) {
		t.Errorf("%s has no %s", text, want)
	}
}

func FuzzReadControl(f *testing.F) {
	f.Add(appendControl(nil, typeProbe, []byte("{}")))
	f.Add(appendControl(nil, typeOld, []byte("{}")))
	f.Add(appendControl(nil, typeMetadata, []byte(sample)))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		typ, body, err := readControl(bytes.NewReader(in))
		typ1, body1, err1 := readControl(iotest.OneByteReader(bytes.NewReader(in)))
		if typ != typ1 || !bytes.Equal(body, body1) || (err == nil) != (err1 == nil) {
			t.Fatalf("in pieces: %d %q %v, want %d %q %v", typ1, body1, err1, typ, body, err)
		}
		if err != nil {
			return
		}
		if out := appendControl(nil, typ, body); !bytes.Equal(out, in[:len(out)]) {
			t.Fatalf("written again: % x", out)
		}
	})
}

func FuzzReadDescriptor(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("null"))
	f.Add([]byte(`{"protocol":["tcp"],"tcp_data_port":1e3,"kvferry_version":1,"kvferry_instance":"000102030405060708090a0b0c0d0e0f"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		d, err := readDescriptor(in)
		if err != nil || d == nil {
			return
		}
		if d.Protocol != "tcp" || d.DataPort < 1 || d.DataPort > 65535 {
			t.Fatalf("%+v", d)
		}
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		again, err := readDescriptor(text)
		if err != nil || again.dataAddr("h:1") != d.dataAddr("h:1") || again.ProtoVersion != d.ProtoVersion || again.Native != d.Native {
			t.Fatalf("%s, again %+v, %v", text, again, err)
		}
	})
}
