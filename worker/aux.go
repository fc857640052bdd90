package worker

import (
	"encoding/binary"
	"fmt"

	"github.com/kvferry/kvferry/room"
)

// auxLen is the length of an aux slot: what decode needs beside the KV. Little endian:
//
//	0  u64  room
//	8  i32  first token, sampled by prefill
//	12 u32  tokens of the prompt
//	16 32B  SHA-256 of the logits that the first token was sampled from
//	48      zero
const auxLen = 64

type aux struct {
	room   room.ID
	token  int32
	prompt int
	digest [32]byte
}

func (a aux) put(b []byte) {
	clear(b[:auxLen])
	binary.LittleEndian.PutUint64(b, uint64(a.room))
	binary.LittleEndian.PutUint32(b[8:], uint32(a.token))
	binary.LittleEndian.PutUint32(b[12:], uint32(a.prompt))
	copy(b[16:], a.digest[:])
}

// readAux reads the slot of a room. Another room's number, or another prompt length, means that the two legs are not of one request.
func readAux(b []byte, id room.ID, prompt, vocab int) (a aux, err error) {
	a.room, a.token, a.prompt = room.ID(binary.LittleEndian.Uint64(b)), int32(binary.LittleEndian.Uint32(b[8:])), int(binary.LittleEndian.Uint32(b[12:]))
	copy(a.digest[:], b[16:])
	switch {
	case a.room != id:
		return a, fmt.Errorf("aux slot is of room %d, want %d", a.room, id)
	case a.prompt != prompt:
		return a, fmt.Errorf("prefill computed %d tokens of prompt, decode has %d", a.prompt, prompt)
	case a.token < 0 || int(a.token) >= vocab:
		return a, fmt.Errorf("first token is %d, the vocabulary has %d", a.token, vocab)
	}
	return a, nil
}
