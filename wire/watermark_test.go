package wire

import (
	"testing"
)

func TestWatermark(t *testing.T) {
	checkGolden(t, Watermark{3, 4096, "A"}, ParseWatermark, "WATERMARK", "3", "4096", "A")
	checkShortened(t, ParseWatermark, 4, framesOf("WATERMARK", "3", "4096", "A"))
	checkRefusals(t, ParseWatermark,
		refusal{[]string{"ABORT", "3", "4096", "A"}, ErrUnknownType},
		refusal{[]string{"WATERMARK", "-1", "4096", "A"}, ErrRange},
		refusal{[]string{"WATERMARK", "3", "281474976710657", "A"}, ErrRange},
		refusal{[]string{"WATERMARK", "3", "0", ""}, ErrRange},
	)
}

func FuzzWatermark(f *testing.F) {
	seed(f, framesOf("WATERMARK", "3", "4096", "A"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseWatermark, in) })
}
