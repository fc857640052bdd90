package tcp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"

	"github.com/kvferry/kvferry/transfer"
)

// Types of control messages.
const (
	typeConnection = 0
	typeMetadata   = 1
	typeNotify     = 2
	typeProbe      = 3
	typeOld        = 0xff // no type byte: the protocol before types. Never on the wire
)

// maxControl bounds a control message: upstream's default limit.
const maxControl = 1 << 20

var errControl = errors.New("invalid control message")

// readControl reads one control message: u64 length, a type byte (absent in the old protocol), JSON. Memory grows with what really comes.
func readControl(r io.Reader) (typ byte, body []byte, err error) {
	var n [8]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return 0, nil, err
	}
	size := binary.LittleEndian.Uint64(n[:])
	if size == 0 || size > maxControl {
		return 0, nil, fmt.Errorf("%w: length %d, want 1 to %d", errControl, size, maxControl)
	}
	body, err = io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return 0, nil, err
	}
	if uint64(len(body)) < size {
		return 0, nil, io.ErrUnexpectedEOF
	}
	if t := int8(body[0]); t < 0 { // upstream compares signed characters, so these are types, and unknown ones
		return 0, nil, fmt.Errorf("%w: type %d", errControl, body[0])
	} else if t <= typeProbe {
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

// Instance tells one incarnation of an engine from the next.
type Instance [16]byte

// MarshalText writes hexadecimal digits.
func (i Instance) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, i[:]), nil }

// UnmarshalText reads hexadecimal digits.
func (i *Instance) UnmarshalText(b []byte) error {
	if len(b) != 2*len(i) {
		return fmt.Errorf("instance id of %d digits, want %d", len(b), 2*len(i))
	}
	_, err := hex.Decode(i[:], b)
	return err
}

// count is a small number in JSON. Upstream's parser takes integral floats for integers, and so do we.
type count int

func (c *count) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	if f != math.Trunc(f) || math.Abs(f) > 1<<31 { // of peers of other transports it is garbage, and within 32 bits
		return fmt.Errorf("number %.30s, want a small integer", b)
	}
	*c = count(f)
	return nil
}

// buffer is one registered range in a descriptor.
type buffer struct {
	Addr   uint64 `json:"addr"`
	Length uint64 `json:"length"`
	Name   string `json:"name"`
}

// maxBuffers bounds the ranges that a descriptor names: TCP peers do not read them, and a descriptor must stay below maxControl.
const maxBuffers = 4096

// descriptor is what a target says about itself.
type descriptor struct {
	Buffers      []buffer  `json:"buffers"`
	Name         string    `json:"name"`
	Protocol     string    `json:"protocol"`
	DataHost     string    `json:"tcp_data_host,omitempty"`
	DataPort     count     `json:"tcp_data_port"`
	ProtoVersion count     `json:"tcp_proto_version,omitempty"`
	Native       count     `json:"kvferry_version,omitempty"`
	Instance     *Instance `json:"kvferry_instance,omitempty"`
}

// readDescriptor reads a peer's descriptor, also one of a build for several protocols, where protocol is a list. nil without an error: the
// peer has none yet. Ranges are not read: the caller has them from elsewhere.
func readDescriptor(b []byte) (*descriptor, error) {
	if string(bytes.TrimSpace(b)) == "null" {
		return nil, nil
	}
	var raw struct {
		descriptor
		Buffers  json.RawMessage `json:"buffers"`
		Protocol json.RawMessage `json:"protocol"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, fmt.Errorf("descriptor: %w", err)
	}
	d := raw.descriptor
	var list []string
	if json.Unmarshal(raw.Protocol, &d.Protocol) != nil && json.Unmarshal(raw.Protocol, &list) != nil {
		return nil, fmt.Errorf("descriptor: protocol %.40s, want \"tcp\"", raw.Protocol)
	}
	for _, p := range list {
		if p == "tcp" {
			d.Protocol = p
		}
	}
	if d.Protocol != "tcp" {
		return nil, fmt.Errorf("descriptor: protocol %.40s, want \"tcp\"", raw.Protocol)
	}
	if d.DataPort < 1 || d.DataPort > math.MaxUint16 {
		return nil, fmt.Errorf("descriptor: tcp_data_port %d, want 1 to %d", d.DataPort, math.MaxUint16)
	}
	return &d, nil
}

// dataAddr is where a target takes data, as it says; its host is that of the name it was dialled by when it says none.
func (d *descriptor) dataAddr(dialled string) string {
	host := d.DataHost
	if host == "" {
		host, _, _ = net.SplitHostPort(d.Name)
	}
	if host == "" {
		host, _, _ = net.SplitHostPort(dialled)
	}
	return net.JoinHostPort(host, fmt.Sprint(int(d.DataPort)))
}

// describe makes our own descriptor.
func (e *Engine) describe() descriptor {
	d := descriptor{Buffers: []buffer{}, Name: e.name, Protocol: "tcp", DataHost: e.cfg.Advertise, DataPort: count(e.cfg.AdvertiseDataPort), ProtoVersion: 2}
	if !e.cfg.Foreign {
		d.Native, d.Instance = sumsFrom, &e.cfg.Instance
	}
	if e.cfg.Version1 {
		d.ProtoVersion, d.Native, d.Instance = 0, 0, nil
	}
	e.space.Regions(func(r transfer.Range) {
		if len(d.Buffers) < maxBuffers {
			d.Buffers = append(d.Buffers, buffer{r.Base, r.Len, e.name})
		}
	})
	return d
}

// notification is the body of a notify message.
type notification struct {
	Name string `json:"name"`
	Msg  string `json:"notify_msg"`
}

// rejection answers the queue-pair handshake of an RDMA peer.
type rejection struct {
	GID     string `json:"local_gid"`
	LID     int    `json:"local_lid"`
	NIC     string `json:"local_nic_path"`
	Payload string `json:"payload"`
	PeerNIC string `json:"peer_nic_path"`
	QP      []int  `json:"qp_num"`
	Reply   string `json:"reply_msg"`
}

// answer is the reply to a control message, nil for one that gets none.
func (e *Engine) answer(typ byte, body []byte) any {
	switch typ {
	case typeMetadata: // whatever the requester says of itself
		if json.Valid(body) {
			return e.describe()
		}
	case typeNotify:
		var n notification
		if json.Unmarshal(body, &n) != nil {
			return nil
		}
		if e.cfg.OnNotify != nil {
			e.cfg.OnNotify(n.Name, n.Msg)
		}
		return notification{Msg: "success"}
	case typeProbe:
		if json.Valid(body) {
			return map[string]string{"status": "success"}
		}
	case typeConnection, typeOld:
		if json.Valid(body) {
			return rejection{QP: []int{}, Reply: "transport not supported"}
		}
	}
	return nil
}
