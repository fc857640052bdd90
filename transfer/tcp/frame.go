package tcp

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Numbers of the data protocol (Mooncake, transport/tcp_transport).
const (
	headerLen = 24
	statusLen = 8

	opRead  = 0x00
	opWrite = 0x01
	flagV2  = 0x80
	opHello = 0x4b

	statusMagic = 0x4D435456

	helloSize = 0x4b56_4645_5252_5931 // "KVFERRY1"
	helloAddr = 0x6e61_7469_7665_0001 // "native", version 1
)

// Status codes. 0 and 1 are Mooncake's, the others are sent on native connections alone.
const (
	statusOK            = 0
	statusRejected      = 1
	statusSealed        = 2
	statusNotRegistered = 3
	statusOutOfRange    = 4
)

// header precedes the payload of a request. The last seven bytes are padding, which a peer may leave uninitialised.
type header struct {
	size, addr uint64
	op         byte
}

func parseHeader(b []byte) header {
	return header{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), b[16]}
}

func putHeader(b []byte, h header) {
	binary.LittleEndian.PutUint64(b, h.size)
	binary.LittleEndian.PutUint64(b[8:], h.addr)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.op))
}

func appendStatus(b []byte, code uint32) []byte {
	return binary.LittleEndian.AppendUint64(b, statusMagic<<32|uint64(code))
}

// errStatus reports a status frame without the magic.
var errStatus = errors.New("no status frame")

func parseStatus(b []byte) (uint32, error) {
	v := binary.LittleEndian.Uint64(b)
	if v>>32 != statusMagic {
		return 0, fmt.Errorf("%w: % x", errStatus, b[:statusLen])
	}
	return uint32(v), nil
}

// Types of control messages.
const (
	typeConnection = 0
	typeMetadata   = 1
	typeNotify     = 2
	typeProbe      = 3
	typeOld        = 0xff // no type byte: the protocol before types
)

// maxControl bounds a control message: upstream's default limit.
const maxControl = 1 << 20

var errControl = errors.New("invalid control message")

// readControl reads one control message: u64 length, a type byte (absent in the old protocol), JSON.
func readControl(r io.Reader) (typ byte, body []byte, err error) {
	var n [8]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return 0, nil, err
	}
	size := binary.LittleEndian.Uint64(n[:])
	if size == 0 || size > maxControl {
		return 0, nil, fmt.Errorf("%w: length %d, want 1 to %d", errControl, size, maxControl)
	}
	body, err = io.ReadAll(io.LimitReader(r, int64(size))) // grows with what really comes
	if err != nil {
		return 0, nil, err
	}
	if uint64(len(body)) < size {
		return 0, nil, io.ErrUnexpectedEOF
	}
	if t := int8(body[0]); t <= typeProbe {
		return body[0], body[1:], nil
	}
	return typeOld, body, nil
}

func appendControl(b []byte, typ byte, body []byte) []byte {
	n := uint64(len(body))
	if typ != typeOld {
		n++
	}
	b = binary.LittleEndian.AppendUint64(b, n)
	if typ != typeOld {
		b = append(b, typ)
	}
	return append(b, body...)
}

// descriptor is what a target says about itself.
type descriptor struct {
	Name         string            `json:"name"`
	Protocol     string            `json:"protocol"`
	DataHost     string            `json:"tcp_data_host,omitempty"`
	DataPort     int               `json:"tcp_data_port"`
	ProtoVersion int               `json:"tcp_proto_version,omitempty"`
	Native       int               `json:"kvferry_version,omitempty"`
	Buffers      []json.RawMessage `json:"buffers"`
}

// readDescriptor reads a descriptor, also one of a build for several protocols, where protocol is a list.
func readDescriptor(b []byte) (d descriptor, err error) {
	var raw struct {
		descriptor
		Protocol json.RawMessage `json:"protocol"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return d, fmt.Errorf("descriptor: %w", err)
	}
	d = raw.descriptor
	var list []string
	if json.Unmarshal(raw.Protocol, &d.Protocol) != nil && json.Unmarshal(raw.Protocol, &list) != nil {
		return d, fmt.Errorf("descriptor: protocol %.40s, want \"tcp\"", raw.Protocol)
	}
	for _, p := range list {
		if p == "tcp" {
			d.Protocol = p
		}
	}
	if d.Protocol != "tcp" {
		return d, fmt.Errorf("descriptor: protocol %.40s, want \"tcp\"", raw.Protocol)
	}
	if d.DataPort < 1 || d.DataPort > 65535 {
		return d, fmt.Errorf("descriptor: tcp_data_port %d, want 1 to 65535", d.DataPort)
	}
	return d, nil
}
