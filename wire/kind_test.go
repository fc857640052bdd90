package wire

import (
	"testing"
)

func TestClassify(t *testing.T) {
	rows := []struct {
		frames     []string
		p, d       map[Dialect]Kind // missing: KindUnknown
		everywhere [2]Kind          // on P and on D, in all dialects, where p and d are nil
	}{
		{frames: nil},
		{frames: []string{""}},
		{frames: []string{"-1", "4", "0"}},
		{frames: []string{"18446744073709551616"}},
		{frames: []string{"GET / HTTP/1.1"}},
		{frames: []string{"ABORT"}, everywhere: [2]Kind{KindAbort, 0}},
		{frames: []string{"ABORT_ACK", "7"}, everywhere: [2]Kind{0, KindAbortAck}},
		{
			frames: []string{"7", "4", "0"},
			p:      map[Dialect]Kind{Mooncake: KindMetadata}, d: map[Dialect]Kind{Mooncake: KindStatus},
		},
		{frames: []string{"KV_STATUS", "7"}, d: map[Dialect]Kind{Nixl: KindStatus}},
		{
			frames: []string{"MoriMsgGuard", "7"},
			p:      map[Dialect]Kind{Mori: KindMetadata}, d: map[Dialect]Kind{Mori: KindStatus},
		},
		{frames: []string{"NixlMsgGuard", "7"}, p: map[Dialect]Kind{Nixl: KindMetadata}},
		{frames: []string{"NixlMsgGuard"}},
		{frames: []string{"NixlMsgGuard", "None"}, p: map[Dialect]Kind{Nixl: KindRegistration}},
		{frames: []string{"None"}, p: map[Dialect]Kind{Mooncake: KindRegistration}},
		{frames: []string{"AUX_DATA"}, d: map[Dialect]Kind{Mooncake: KindAuxData, Mori: KindAuxData}},
		{frames: []string{"CHUNK_READY"}, d: map[Dialect]Kind{Mooncake: KindChunkReady, Nixl: KindChunkReady}},
		{frames: []string{"STAGING_REQ"}, d: map[Dialect]Kind{Mooncake: KindStagingReq, Nixl: KindStagingReq}},
		{frames: []string{"STAGING_RSP"}, p: map[Dialect]Kind{Mooncake: KindStagingRsp, Nixl: KindStagingRsp}},
		{frames: []string{"WATERMARK"}, p: map[Dialect]Kind{Mooncake: KindWatermark, Nixl: KindWatermark}},
		{frames: []string{"BOOTSTRAP"}, p: map[Dialect]Kind{Mooncake: KindBootstrap}},
		{frames: []string{"KVFERRY"}, everywhere: [2]Kind{KindNative, KindNative}},
		{frames: []string{"KVFERRY", "MELTED"}, everywhere: [2]Kind{KindNative, KindNative}},
		{frames: []string{"KVFERRY", "STATUS"}, everywhere: [2]Kind{KindNative, KindNativeStatus}},
		{frames: []string{"KVFERRY", "QUIESCENT"}, everywhere: [2]Kind{KindNative, KindNativeQuiescent}},
		{frames: []string{"KVFERRY", "ABORT"}, everywhere: [2]Kind{KindNativeAbort, KindNative}},
		{frames: []string{"KVFERRY", "ACK"}, everywhere: [2]Kind{KindNativeAck, KindNativeAck}},
		{frames: []string{"KVFERRY", "REFUSED"}, everywhere: [2]Kind{KindNative, KindNativeRefused}},
		{frames: []string{"KVFERRY", "QUEUED"}, everywhere: [2]Kind{KindNative, KindNativeQueued}},
		{frames: []string{"KVFERRY", "GOODBYE"}, everywhere: [2]Kind{KindNativeGoodbye, KindNativeGoodbye}},
	}
	for _, row := range rows {
		for _, d := range []Dialect{Mooncake, Nixl, Mori} {
			wantP, wantD := row.everywhere[0], row.everywhere[1]
			if row.p != nil || row.d != nil {
				wantP, wantD = row.p[d], row.d[d]
			}
			if got := ClassifyP(d, framesOf(row.frames...)); got != wantP {
				t.Errorf("ClassifyP(%v, %q) = %v, want %v", d, row.frames, got, wantP)
			}
			if got := ClassifyD(d, framesOf(row.frames...)); got != wantD {
				t.Errorf("ClassifyD(%v, %q) = %v, want %v", d, row.frames, got, wantD)
			}
		}
	}
}

func TestKindLabels(t *testing.T) {
	seen := map[string]bool{}
	for k := range endKind {
		if s := k.String(); s == "" || seen[s] {
			t.Errorf("kind %d: label %q", k, s)
		}
		seen[k.String()] = true
	}
	if endKind.String() != "unknown" {
		t.Error("a kind outside the set has a label of its own")
	}
}

func FuzzClassify(f *testing.F) {
	seed(f, framesOf("KVFERRY", "STATUS"))
	f.Fuzz(func(t *testing.T, in []byte) {
		frames := splitInput(in)
		for d := Dialect(0); d < 5; d++ {
			if p, q := ClassifyP(d, frames), ClassifyD(d, frames); p >= endKind || q >= endKind {
				t.Fatalf("%q: %d, %d", frames, p, q)
			}
		}
	})
}
