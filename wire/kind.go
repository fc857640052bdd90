package wire

// Dialect is one of SGLang's transfer backends. The zero value is none.
type Dialect uint8

const (
	_ Dialect = iota
	Mooncake
	Nixl
	Mori
)

func (d Dialect) String() string {
	switch d {
	case Mooncake:
		return "mooncake"
	case Nixl:
		return "nixl"
	case Mori:
		return "mori"
	}
	return "unknown"
}

// Guards that stand before some messages of a dialect.
const (
	nixlGuard = "NixlMsgGuard"
	moriGuard = "MoriMsgGuard"
	statusTag = "KV_STATUS"
)

// Kind is what a message is by its first frames, sound or not. The zero value is KindUnknown. String is its label in counters.
type Kind uint8

const (
	KindUnknown Kind = iota // nothing that the port receives
	KindRegistration
	KindMetadata
	KindAbort
	KindAbortAck
	KindStatus
	KindAuxData
	KindChunkReady
	KindStagingReq
	KindStagingRsp
	KindWatermark
	KindBootstrap
	KindNative // native, of a type this version doesn't know
	KindNativeStatus
	KindNativeQuiescent
	KindNativeAbort
	KindNativeAck
	KindNativeRefused
	KindNativeQueued
	KindNativeGoodbye
	endKind
)

var kindLabels = [endKind]string{
	"unknown", "registration", "metadata", "abort", "abort_ack", "status", "aux_data", "chunk_ready", "staging_req", "staging_rsp",
	"watermark", "bootstrap", "native", "native_status", "native_quiescent", "native_abort", "native_ack", "native_refused",
	"native_queued", "native_goodbye",
}

func (k Kind) String() string {
	if k < endKind {
		return kindLabels[k]
	}
	return kindLabels[KindUnknown]
}

// ClassifyP says what a message is that came to a prefill rank's control port. It never fails.
func ClassifyP(d Dialect, frames [][]byte) Kind {
	if len(frames) == 0 {
		return KindUnknown
	}
	switch string(frames[0]) {
	case abortTag:
		return KindAbort
	case stagingRspTag:
		return only(d != Mori, KindStagingRsp)
	case watermarkTag:
		return only(d != Mori, KindWatermark)
	case bootstrapTag:
		return only(d == Mooncake, KindBootstrap)
	case nativeTag:
		return classifyNative(frames, true)
	}
	if d != Mooncake {
		if string(frames[0]) != guardOf(d) || len(frames) == 1 {
			return KindUnknown
		}
		frames = frames[1:]
	}
	if string(frames[0]) == registrationTag {
		return KindRegistration
	}
	_, ok := digits(frames[0])
	return only(ok, KindMetadata)
}

// ClassifyD says what a message is that came to a decode rank's control port. It never fails.
func ClassifyD(d Dialect, frames [][]byte) Kind {
	if len(frames) == 0 {
		return KindUnknown
	}
	switch string(frames[0]) {
	case abortAckTag:
		return KindAbortAck
	case auxDataTag:
		return only(d != Nixl, KindAuxData)
	case chunkReadyTag:
		return only(d != Mori, KindChunkReady)
	case stagingReqTag:
		return only(d != Mori, KindStagingReq)
	case statusTag:
		return only(d == Nixl, KindStatus)
	case moriGuard:
		return only(d == Mori, KindStatus)
	case nativeTag:
		return classifyNative(frames, false)
	}
	_, ok := digits(frames[0])
	return only(ok && d == Mooncake, KindStatus)
}

func guardOf(d Dialect) string {
	if d == Mori {
		return moriGuard
	}
	return nixlGuard
}

func only(ok bool, k Kind) Kind {
	if ok {
		return k
	}
	return KindUnknown
}
