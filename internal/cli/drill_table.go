package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/drill"
)

// drillTable prints results as they come: one row for a fault on a side, or one JSON object for a cell.
type drillTable struct {
	out, progress io.Writer
	json, verbose bool
	cells         []drill.Cell // all that were selected

	row             []drill.Result // of the same fault and side
	failed          []drill.Result
	done, bad, runs int
}

func drilled(cells []drill.Cell) (n int) {
	for _, c := range cells {
		if c.NA == "" {
			n++
		}
	}
	return n
}

// write ignores an error: without a reader there is nobody to report it to.
func (t *drillTable) write(format string, args ...any) { _, _ = fmt.Fprintf(t.out, format, args...) }

func (t *drillTable) begin() {
	t.tick("")
	if t.json {
		return
	}
	t.write("%-21s", "")
	for _, m := range drill.Moments {
		t.write("%-11s", m)
	}
	t.write("%-24s%-24s%s\n%-21s", "detect ms", "client ms", "pages back ms", "")
	t.write("%s", strings.Repeat(" ", 11*len(drill.Moments)))
	t.write("%-24s%-24s%s\n", "p50 / p99 / max", "p50 / p99 / max", "p50 / p99 / max")
}

func (t *drillTable) tick(what string) {
	_, _ = fmt.Fprintf(t.progress, "\r\x1b[K%d of %d cells  %s", t.done, drilled(t.cells), what) // nobody looks
}

// add takes the result of a cell.
func (t *drillTable) add(r drill.Result) {
	t.done++
	t.runs += r.Runs
	if !r.OK {
		t.bad++
		t.failed = append(t.failed, r)
	}
	if t.json {
		_ = json.NewEncoder(t.out).Encode(r) // as write
		t.tick(r.String())
		return
	}
	if len(t.row) > 0 && (t.row[0].Fault != r.Fault || t.row[0].Side != r.Side || t.row[0].Engine != r.Engine) {
		t.flush()
	}
	t.row = append(t.row, r)
	t.tick(r.String())
}

// flush prints the row that is complete.
func (t *drillTable) flush() {
	if len(t.row) == 0 {
		return
	}
	_, _ = io.WriteString(t.progress, "\r\x1b[K") // as tick
	first := t.row[0]
	t.write("%-21s", first.Side+"-"+first.Fault)
	for _, m := range drill.Moments {
		i := slices.IndexFunc(t.row, func(r drill.Result) bool { return r.Moment == m })
		switch {
		case i < 0:
			t.write("%-11s", "·")
		case t.row[i].OK:
			t.write("%-11s", "ok")
		default:
			t.write("%-11s", fmt.Sprintf("FAIL %d/%d", t.row[i].Bad, t.row[i].Runs))
		}
	}
	detect, client, release := drill.StatsOf(t.row)
	t.write("%-24s%-24s%s\n", spread(detect), spread(client), spread(release))
	t.row = nil
}

// spread is one cell of times in milliseconds.
func spread(s drill.Stats) string {
	if s.N == 0 {
		return "–"
	}
	one := func(d time.Duration) string {
		if d < 10*time.Millisecond {
			return fmt.Sprintf("%.1f", ms(d))
		}
		return fmt.Sprintf("%.0f", ms(d))
	}
	return one(s.P50) + " / " + one(s.P99) + " / " + one(s.Max)
}

// end prints what is left to say; in JSON, where standard output is for cells alone, to notes.
func (t *drillTable) end(notes io.Writer) {
	t.flush()
	_, _ = io.WriteString(t.progress, "\r\x1b[K") // as tick
	if t.json {
		t.out = notes
	}
	for _, r := range t.failed {
		t.write("\n%s: not ok in %d of %d runs; again: kvferry drill --only %s --seed %d --repeat %d --verbose\n", r, r.Bad, r.Runs, r, r.Seed, r.Runs)
		for i, p := range r.Problems {
			if i == 5 {
				t.write("  and %d more\n", len(r.Problems)-i)
				break
			}
			t.write("  %s\n", strings.ReplaceAll(p, "\n", "\n    "))
		}
		if t.verbose {
			t.write("%s", r.Logs)
		}
	}
	t.write("\n%d cells ok, %d not ok (%d runs). %s\n", t.done-t.bad, t.bad, t.runs, summary(t.cells))
}

// summary counts cells without meaning by their reason.
func summary(cells []drill.Cell) string {
	why := map[string]int{}
	for _, c := range cells {
		if c.NA != "" {
			why[c.NA]++
		}
	}
	n := drilled(cells)
	s := fmt.Sprintf("%d combinations: %d drilled, %d without meaning", len(cells), n, len(cells)-n)
	order := slices.SortedFunc(maps.Keys(why), func(a, b string) int { return cmp.Or(why[b]-why[a], strings.Compare(a, b)) })
	for _, reason := range order {
		s += fmt.Sprintf("\n%5d  %s", why[reason], reason)
	}
	return s
}
