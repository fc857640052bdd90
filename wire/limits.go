package wire

import "github.com/kvferry/kvferry/room"

// Limits of every message. A reader refuses what is beyond with ErrRange.
const (
	// MaxFrames bounds the frames of one message; SGLang's longest has 25 (NIXL registration with its guard).
	MaxFrames = 64
	// MaxName bounds a host, a session id, an agent name or an engine key, in bytes.
	MaxName = 255
	// MaxPages bounds a list of page numbers: two million tokens at SGLang's smallest page, one token.
	MaxPages = 1 << 21
	// MaxPointers bounds a list with an entry per region: pointers, layer ids, item lengths. K and V of 126 layers are 252.
	MaxPointers = 4096
	// MaxStateLists bounds the components of a state, MaxStateEntries the numbers in all their lists of one frame.
	MaxStateLists   = 64
	MaxStateEntries = MaxPages
	// MaxRank bounds rank numbers, and MaxRanks sizes and counts of ranks.
	MaxRank  = MaxRanks - 1
	MaxRanks = 1 << 20
	// MaxSlot bounds aux slots and buffer indices, MaxChunk chunk numbers, MaxPage page numbers (int32 on the wire).
	MaxSlot  = 1<<31 - 1
	MaxChunk = 1<<31 - 1
	MaxPage  = 1<<31 - 1
	// MaxTokens bounds the prefix that decode holds already.
	MaxTokens = 1<<31 - 1
	// MaxItemLen bounds the bytes of one page of one region.
	MaxItemLen = 1 << 40
	// MaxStaging bounds the bytes of a staging ring and its rounds.
	MaxStaging = 1 << 48
	// MaxAuxBytes bounds the content of one AUX_DATA message.
	MaxAuxBytes = 16 << 20
	// MaxBlob bounds an opaque descriptor: the native geometry, Mori's engine and memory descriptors.
	MaxBlob = 64 << 10
	// MaxAgentMetadata bounds NIXL's agent metadata, which grows with the registered regions.
	MaxAgentMetadata = 4 << 20
	// MaxQueuedRooms bounds the rooms of one keep-alive.
	MaxQueuedRooms = 1 << 16
	// MaxText bounds reasons and causes in bytes. Longer ones are cut, not refused: losing the message would be worse.
	MaxText = room.MaxCauseText
)
