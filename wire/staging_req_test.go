package wire

import (
	"testing"
)

func TestStagingReq(t *testing.T) {
	checkGolden(t, StagingReq{7, 1, 32, "A", 0}, ParseStagingReq, "STAGING_REQ", "7", "1", "32", "A", "0")
	checkGolden(t, StagingReq{7, 1, 32, "A", -1}, ParseStagingReq, "STAGING_REQ", "7", "1", "32", "A")
	checkShortened(t, ParseStagingReq, 5, framesOf("STAGING_REQ", "7", "1", "32", "A", "0"))
	checkRefusals(t, ParseStagingReq,
		refusal{[]string{"STAGING_RSP", "7", "1", "32", "A"}, ErrUnknownType},
		refusal{[]string{"STAGING_REQ", "7", "1", "0", "A"}, ErrRange},
		refusal{[]string{"STAGING_REQ", "7", "2147483648", "1", "A"}, ErrRange},
		refusal{[]string{"STAGING_REQ", "7", "1", "1", "A", "x"}, ErrRange},
	)
}

func FuzzStagingReq(f *testing.F) {
	seed(f, framesOf("STAGING_REQ", "7", "1", "32", "A", "0"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseStagingReq, in) })
}
