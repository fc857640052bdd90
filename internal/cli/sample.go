package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/worker"
)

// sample is the one prompt that `up` sends by itself.
type sample struct {
	flags *upFlags
	url   string
	model *llm.Model
	name  string
	kids  []*child
	p     *printer

	began   time.Time
	first   time.Duration // to the first text
	text    strings.Builder
	room    room.ID
	digests []string
}

// result is the last line of `up --json`.
type result struct {
	OK          bool    `json:"ok"`
	Identical   bool    `json:"identical"`
	KVBytes     int64   `json:"kv_bytes"`
	HiddenShare float64 `json:"hidden_share"`
	TTFT        float64 `json:"ttft_ms"`
	Text        string  `json:"text"`
	Room        room.ID `json:"room"`
	Error       string  `json:"error,omitempty"`
}

func (s *sample) run(ctx context.Context) error {
	err := s.stream(ctx)
	r := result{TTFT: ms(s.first), Text: s.text.String(), Room: s.room}
	if err == nil {
		var list []event.Event
		if list, err = s.events(ctx); err == nil {
			r.KVBytes, r.HiddenShare = measure(list)
			s.timeline(list)
			r.Identical, err = s.identical(ctx)
		}
	}
	r.OK = err == nil && r.Identical
	if err == nil && !r.Identical {
		err = room.NewCause(room.Corrupt, room.Gateway, "", "the logits differ from those of a single process")
	}
	if err != nil {
		r.Error = err.Error()
	}
	if s.p.json {
		s.p.object(r)
		return err
	}
	if err == nil {
		s.p.text("\n%d bytes of KV moved; %.0f %% of the transfer time was hidden behind compute; first token after %.1f ms\n", r.KVBytes, 100*r.HiddenShare, r.TTFT)
		s.p.text("logits of the disaggregated run equal those of a single process bit for bit: yes (%d tokens)\n", len(s.digests))
	}
	return err
}

// stream sends the request and prints the text as it comes.
func (s *sample) stream(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{"model": s.name, "prompt": s.flags.prompt, "max_tokens": s.flags.tokens, "temperature": 0, "ignore_eos": true, "stream": true, "return_logits_digest": true})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	s.p.text("%s", s.flags.prompt)
	s.began = time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("sample: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	if resp.StatusCode != http.StatusOK {
		var e struct{ Error struct{ Message string } }
		_ = json.NewDecoder(resp.Body).Decode(&e) // the status says enough
		code, ok := room.ParseCode(resp.Header.Get("X-Kvferry-Cause"))
		if !ok {
			code = room.Internal
		}
		return room.Causef(code, room.Gateway, "", "sample: %s: %s", resp.Status, e.Error.Message)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			s.p.text("\n")
			return nil
		}
		if err := s.event(data); err != nil {
			return err
		}
	}
	return fmt.Errorf("sample: the stream ended early: %w", lines.Err())
}

func (s *sample) event(data string) error {
	var e struct {
		Choices []struct{ Text string }
		Ours    struct {
			Room    room.ID  `json:"room"`
			Digests []string `json:"logits_sha256"`
		} `json:"kvferry"`
		Error *struct{ Message string }
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return fmt.Errorf("sample: event %.80q: %w", data, err)
	}
	if e.Error != nil {
		return room.Causef(room.Internal, room.Gateway, "", "sample: %s", e.Error.Message)
	}
	if e.Ours.Room != 0 {
		s.room, s.digests = e.Ours.Room, e.Ours.Digests
	}
	for _, c := range e.Choices {
		if s.first == 0 {
			s.first = time.Since(s.began)
		}
		s.text.WriteString(c.Text)
		s.p.text("%s", c.Text)
		if s.p.json && c.Text != "" {
			s.p.object(map[string]any{"event": "text", "text": c.Text})
		}
	}
	return nil
}

// events is the room's story as both workers tell it, in order of time. Prefill's end may come a moment after the client's.
func (s *sample) events(ctx context.Context) ([]event.Event, error) {
	for {
		var all []event.Event
		for _, k := range s.kids {
			var list []event.Event
			if err := get(ctx, fmt.Sprintf("%s%s?room=%d", k.ready.URL, worker.EventsPath, s.room), &list); err != nil {
				return nil, fmt.Errorf("events of %s: %w", k.name, err)
			}
			all = append(all, list...)
		}
		slices.SortStableFunc(all, func(a, b event.Event) int { return a.At.Compare(b.At) })
		ends := 0
		for _, e := range all {
			if e.Kind == event.Finished {
				ends++
			}
		}
		if ends >= 2 || ctx.Err() != nil {
			return all, ctx.Err()
		}
		time.Sleep(5 * time.Millisecond) // the other worker finishes on its own
	}
}

// measure is the bytes that were moved, and the share of the time of all writes that lies before the last chunk was computed.
func measure(list []event.Event) (bytes int64, hidden float64) {
	type key struct {
		rank, chunk int
		peer        string
	}
	began := map[key]time.Time{}
	var computed time.Time
	for _, e := range list {
		if e.Kind == event.Computed {
			computed = e.At
		}
	}
	var total, behind time.Duration
	for _, e := range list {
		k := key{e.Rank, e.Chunk, e.Peer}
		switch e.Kind {
		case event.Sending:
			began[k] = e.At
		case event.Applied:
			bytes += e.Bytes
			from := began[k]
			total += e.At.Sub(from)
			if from.Before(computed) {
				behind += min(e.At.Sub(from), computed.Sub(from))
			}
		default:
		}
	}
	if total > 0 {
		hidden = float64(behind) / float64(total)
	}
	return bytes, hidden
}

// shown are the kinds that the timeline has, with the words for them.
var shown = map[event.Kind]string{event.Opened: "room opened", event.Routed: "rendezvous: prefill ranks found", event.Published: "pages published", event.Bootstrapped: "metadata received",
	event.Computed: "computed", event.Sending: "sending", event.Applied: "applied", event.Covered: "every byte in place", event.StatusSent: "verdict sent", event.StatusHeard: "verdict received",
	event.Verdict: "verdict", event.Quiescent: "quiescent", event.FirstToken: "first token", event.Finished: "finished"}

func (s *sample) timeline(list []event.Event) {
	s.p.text("\nroom %d, times in ms from the request:\n", s.room)
	for _, e := range list {
		words, ok := shown[e.Kind]
		if !ok {
			continue
		}
		if s.p.json {
			s.p.object(e)
			continue
		}
		who := e.Side.String()
		if e.Rank >= 0 {
			who = fmt.Sprintf("%s rank %d", e.Side, e.Rank)
		}
		line := fmt.Sprintf("%9.2f  %-15s ", ms(e.At.Sub(s.began)), who)
		if e.Chunk >= 0 {
			line += fmt.Sprintf("chunk %d ", e.Chunk)
		}
		line += words
		if e.Kind == event.Verdict || e.Kind == event.StatusSent || e.Kind == event.StatusHeard {
			line += " " + e.Status.String()
		}
		if e.Bytes > 0 {
			line += fmt.Sprintf(", %d bytes", e.Bytes)
		} else if e.Pages > 0 {
			line += fmt.Sprintf(", %d pages", e.Pages)
			if e.Kind == event.Routed {
				line = strings.Replace(line, " pages", "", 1)
			}
		}
		if e.Note != "" {
			line += ": " + e.Note
		}
		s.p.text("%s\n", line)
	}
}

// identical computes the same request in this process, on one rank and in one chunk, and compares the logits of every token.
func (s *sample) identical(ctx context.Context) (bool, error) {
	c := s.model.Config()
	ids := s.model.Tokenizer().Encode(s.flags.prompt)
	geo := llm.Geometry{TP: 1, PP: 1, PageSize: 16}
	n := (len(ids)+s.flags.tokens)/geo.PageSize + 1
	var regions [][]byte
	for range 2 * c.Layers {
		regions = append(regions, make([]byte, n*geo.ItemLen(c)))
	}
	in, err := llm.NewInstance(s.model, geo, [][][]byte{regions})
	if err != nil {
		return false, err
	}
	table := make([]int32, n)
	for i := range table {
		table[i] = int32(i)
	}
	want := worker.Digests(ctx, in, &ids, [][]int32{table}, len(s.digests))
	return len(want) > 0 && slices.Equal(want, s.digests), nil
}
