package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Numbers of the data protocol. Source: Mooncake, mooncake-transfer-engine/src/transport/tcp_transport, except for those of the hello.
const (
	headerLen = 24
	statusLen = 8

	opRead  = 0x00
	opWrite = 0x01
	flagV2  = 0x80

	statusMagic = 0x4D435456

	opHello   = 0x4b                  // ours
	helloSize = 0x4b56_4645_5252_5931 // size field of a hello
	helloAddr = 0x6e61_7469_7665_0001 // address field: version 1 of it
	helloLen  = 2 * len(Instance{})   // body: the initiator's id, the id it takes the target for
	opTable   = 0x4d                  // ours, on native connections: many writes, whose payloads follow a table of them
	opSync    = 0x4c                  // ours, on native connections: send the statuses that wait. No body, no status
	moreFlag  = 1                     // ours, on native connections, first byte of the padding: another request follows at once
	sumFlag   = 2                     // likewise: the request carries checksums
	sumsFrom  = 2                     // the version of native targets that know sumFlag

	headLen = 18 // of a header, without the rest of the padding
	sumAt   = 20 // in a header that has sumFlag
)

// castagnoli is the polynomial of checksums: CRC32C has instructions on amd64 and arm64. The checksum of a write covers what names it (the
// header up to its flags, or its row of a table) and its payload. It stands in the header, or behind the payloads of a table.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// tableMax bounds the writes of a table. Header: size = bytes of all payloads, address = number of writes. Each has a size and an address, 8 bytes
// each; then zeros up to a multiple of 64 bytes from the header on, which keeps payloads aligned for those who copy them. With sumFlag the
// payloads are followed by their checksums, 4 bytes each, and zeros up to a multiple of 64 bytes.
const (
	tableMax = 64
	rowLen   = 16
)

// tableLen is the length of a table with its padding.
func tableLen(n int) int { return (headerLen+rowLen*n+63)/64*64 - headerLen }

// sumsLen is the length of a table's checksums with their padding.
func sumsLen(n int) int { return (crc32.Size*n + 63) / 64 * 64 }

func appendRow(b []byte, size, addr uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, size), addr)
}

var zeros [64]byte

// pad appends zeros, less than 64.
func pad(b []byte, n int) []byte { return append(b, zeros[:n]...) }

// Status codes. 0 and 1 are Mooncake's, the others are sent on native connections alone.
const (
	statusOK            = 0
	statusRejected      = 1
	statusSealed        = 2
	statusNotRegistered = 3
	statusOutOfRange    = 4
	statusOtherInstance = 5
	statusCorrupt       = 6
)

// header precedes the payload of a request. Its last seven bytes are padding, which a peer may leave uninitialised; on native connections the
// first of them is flags, and with sumFlag the last four are a checksum.
type header struct {
	size, addr uint64
	op, flags  byte
	sum        uint32
}

func parseHeader(b []byte) header {
	return header{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), b[16], b[17], binary.LittleEndian.Uint32(b[sumAt:])}
}

func appendHeader(b []byte, h header) []byte {
	b = binary.LittleEndian.AppendUint64(b, h.size)
	b = binary.LittleEndian.AppendUint64(b, h.addr)
	return binary.LittleEndian.AppendUint64(b, uint64(h.op)|uint64(h.flags)<<8|uint64(h.sum)<<32)
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
