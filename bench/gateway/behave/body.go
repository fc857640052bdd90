package behave

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/fakeworker"
	"github.com/kvferry/kvferry/bench/gateway/jsonscan"
	"github.com/kvferry/kvferry/bench/gateway/load"
)

// bodyCases are about what reaches the workers.
func bodyCases() []Case {
	cases := []Case{
		{Name: "rooms", Want: "each a new integer below 2^63, the same text on both legs", run: roomNumbers},
	}
	for _, api := range []string{"chat", "completions", "generate"} {
		cases = append(cases,
			Case{Name: "big-integers-" + api, Want: "kept exactly on both legs", api: api, run: preserved(api, bigIntegers)},
			Case{Name: "known-fields-" + api, Want: "kept byte for byte on both legs", api: api, run: preserved(api, knownFields)},
			Case{Name: "unknown-fields-" + api, Want: "kept byte for byte on both legs", api: api, run: preserved(api, unknownFields)},
			Case{Name: "client-room-" + api, Want: "refused with 400, or replaced on both legs; bootstrap_host too", api: api, run: clientRoom(false)},
		)
	}
	return append(cases,
		Case{Name: "client-room-twice", Want: "refused with 400, or replaced by one room on both legs", run: clientRoom(true)},
		Case{Name: "batch-generate", Want: "one room per prompt, the same list on both legs", api: "generate", run: batch(`{"text":["a","b","c"],"sampling_params":{"max_new_tokens":1}}`, 3)},
		Case{Name: "batch-completions", Want: "one room per prompt, the same list on both legs", api: "completions", run: batch(`{"model":"fake","prompt":["a","b"],"max_tokens":1}`, 2)},
		Case{Name: "batch-chat-n", Want: "told for the record", run: batch(`{"model":"fake","messages":[{"role":"user","content":"a"}],"n":2,"max_tokens":1}`, 0)},
		Case{Name: "malformed-json", Want: "400, no leg sent", run: refused(`{"model":"fake","messages":[`, "application/json")},
		Case{Name: "empty-body", Want: "400, no leg sent", run: refused(``, "application/json")},
		Case{Name: "json-array", Want: "400, no leg sent", run: refused(`[1,2]`, "application/json")},
		Case{Name: "trailing-garbage", Want: "400, no leg sent", run: refused(`{"model":"fake","messages":[{"role":"user","content":"a"}]}{"x":1}`, "application/json")},
		Case{Name: "body-64-mib", Want: "200, or 413 at once", run: bigBody},
	)
}

var roomText = regexp.MustCompile(`^[1-9][0-9]*$`)

func roomNumbers(e *env, row *Row) {
	const n, parallel = 200, 8
	start := time.Now()
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() {
			for range n / parallel {
				e.ask(e.ctx, e.body(false), options{})
			}
		})
	}
	wg.Wait()
	row.ClientMS = ms(time.Since(start) / (n / parallel))
	e.waitIdle()

	seen := map[string][2]int{} // legs of each role by room
	var numbers []uint64
	row.Verdict = Right
	for i, role := range []fakeworker.Role{fakeworker.Prefill, fakeworker.Decode} {
		for _, leg := range e.legs(role) {
			count := seen[leg.Room]
			count[i]++
			seen[leg.Room] = count
			v, err := strconv.ParseUint(leg.Room, 10, 63)
			if err != nil || !roomText.MatchString(leg.Room) || leg.RoomFields != 1 {
				row.Verdict = Wrong
				row.note("room %s, given %d time(s)", leg.Room, leg.RoomFields)
			}
			if role == fakeworker.Decode {
				numbers = append(numbers, v)
			}
		}
	}
	for room, count := range seen {
		if count != [2]int{1, 1} {
			row.Verdict = Wrong
			row.note("room %s: %d prefill and %d decode legs", room, count[0], count[1])
		}
	}
	slices.Sort(numbers)
	row.Got = fmt.Sprintf("%d rooms for %d requests", len(seen), n)
	if len(numbers) > 0 {
		least, most := numbers[0], numbers[len(numbers)-1]
		row.note("from %d to %d", least, most)
		if now := uint64(time.Now().UnixNano()); least > now-uint64(time.Hour) && most < now+uint64(time.Hour) {
			row.note("rooms are the wall clock in nanoseconds: predictable, and close together")
		}
	}
}

// Members that a request must carry unharmed. Each is raw JSON text.
var (
	bigIntegers = []jsonscan.Field{
		{Name: "seed", Value: []byte(`9007199254740993`)},
		{Name: "kvferry_big", Value: []byte(`123456789012345678901234567890`)},
	}
	knownFields = []jsonscan.Field{
		{Name: "temperature", Value: []byte(`0.70`)},
		{Name: "top_p", Value: []byte(`1.0`)},
	}
	unknownFields = []jsonscan.Field{
		{Name: "kvferry_unknown", Value: []byte(`{"b":1.0,"a":[1e3,null,"\u003c<&>é"], "b":2}`)},
	}
)

// preserved sends fields along: at the top of the body, or, for those that
// SGLang's own API keeps there, in its sampling_params.
func preserved(api string, fields []jsonscan.Field) func(*env, *Row) {
	nested := api == "generate" && !reflect.DeepEqual(fields, unknownFields)
	return func(e *env, row *Row) {
		body := `{"model":"fake","messages":[{"role":"user","content":"caf\u00e9 <&> \ud83d\ude00","x_extra":1}],`
		switch api {
		case "completions":
			body = `{"model":"fake","prompt":"caf\u00e9 <&> \ud83d\ude00",`
		case "generate":
			body = `{"text":"caf\u00e9 <&> \ud83d\ude00","sampling_params":{"max_new_tokens":4`
			if nested {
				body += ","
			} else {
				body += "},"
			}
		}
		for _, f := range fields {
			body += fmt.Sprintf("%q:%s,", f.Name, f.Value)
		}
		body = strings.TrimSuffix(body, ",") + "}"
		if nested {
			body += "}"
		}
		a := e.ask(e.ctx, []byte(body), options{})
		e.waitIdle()
		row.take(a)
		row.Verdict = Right
		legs := slices.Concat(e.legs(fakeworker.Prefill), e.legs(fakeworker.Decode))
		if a.status != 200 || len(legs) < 2 {
			row.Verdict = Wrong
			return
		}
		var changes []string
		for _, leg := range legs {
			holder := leg.Body
			if nested {
				holder = member(leg.Body, "sampling_params")
			}
			for _, c := range compare(holder, fields) {
				if !slices.Contains(changes, c) {
					changes = append(changes, c)
				}
			}
		}
		if len(changes) > 0 {
			row.Verdict = Wrong
			row.Notes = append(row.Notes, changes...)
		}
		d := legs[len(legs)-1]
		if intact := strings.TrimSuffix(body, "}"); bytes.HasPrefix(d.Body, []byte(intact)) {
			row.note("the client's bytes are intact, new fields follow them")
		} else if bytes.HasSuffix(d.Body, []byte(body[1:])) {
			row.note("the client's bytes are intact, new fields come before them")
		} else {
			row.note("the body was written anew: %.400s", d.Body)
		}
	}
}

// member is the raw value of a member of an object, nil if there is none.
func member(object []byte, name string) []byte {
	fields, _ := jsonscan.Fields(object)
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}

// compare tells how a body differs from the members it should hold.
func compare(body []byte, want []jsonscan.Field) []string {
	got, err := jsonscan.Fields(body)
	if err != nil {
		return []string{err.Error()}
	}
	var changes []string
	for _, w := range want {
		i := slices.IndexFunc(got, func(f jsonscan.Field) bool { return f.Name == w.Name })
		switch {
		case i < 0:
			changes = append(changes, w.Name+" dropped")
		case bytes.Equal(got[i].Value, w.Value):
		case sameValue(got[i].Value, w.Value):
			changes = append(changes, fmt.Sprintf("%s rewritten, same value: %s → %s", w.Name, w.Value, got[i].Value))
		default:
			changes = append(changes, fmt.Sprintf("%s CHANGED: %s → %s", w.Name, w.Value, got[i].Value))
		}
	}
	return changes
}

// sameValue compares as a careful reader would: numbers as texts, but for the
// spellings of one decimal fraction.
func sameValue(a, b []byte) bool {
	read := func(b []byte) (v any) {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		_ = d.Decode(&v)
		return normal(v)
	}
	return reflect.DeepEqual(read(a), read(b))
}

func normal(v any) any {
	switch v := v.(type) {
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			f, _ := v.Float64()
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
		return v.String()
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = normal(v[k])
		}
	}
	return v
}

func clientRoom(twice bool) func(*env, *Row) {
	return func(e *env, row *Row) {
		body := e.body(false)
		extra := `,"bootstrap_room":42,"bootstrap_host":"192.0.2.1","bootstrap_port":1}`
		if twice {
			extra = `,"bootstrap_room":42,"bootstrap_room":43}`
		}
		body = append(bytes.TrimSuffix(body, []byte("}")), extra...)
		a := e.ask(e.ctx, body, options{})
		e.waitIdle()
		row.take(a)
		p, d := e.legs(fakeworker.Prefill), e.legs(fakeworker.Decode)
		switch {
		case a.status == 400 && len(p)+len(d) == 0:
			row.Verdict = Right
			row.Got = "400, nothing sent"
		case len(p) == 0 || len(d) == 0:
			row.Verdict = Wrong
			row.note("%d prefill and %d decode legs", len(p), len(d))
		default:
			row.note("prefill saw room %s at %s:%s in %d field(s); decode %s at %s:%s in %d", p[0].Room, p[0].BootstrapHost, p[0].BootstrapPort, p[0].RoomFields, d[0].Room, d[0].BootstrapHost, d[0].BootstrapPort, d[0].RoomFields)
			row.Verdict = Right
			if p[0].Room != d[0].Room || p[0].RoomFields != 1 || d[0].RoomFields != 1 || d[0].Room == "42" || d[0].Room == "43" || strings.Contains(d[0].BootstrapHost, "192.0.2.1") {
				row.Verdict = Wrong
			}
		}
	}
}

func batch(body string, n int) func(*env, *Row) {
	return func(e *env, row *Row) {
		a := e.ask(e.ctx, []byte(body), options{})
		e.waitIdle()
		row.take(a)
		row.Verdict = Wrong
		p, d := e.legs(fakeworker.Prefill), e.legs(fakeworker.Decode)
		if len(p) == 0 || len(d) == 0 {
			row.note("%d prefill and %d decode legs", len(p), len(d))
			return
		}
		row.note("prefill room %s, decode room %s, host %s, port %s", p[0].Room, d[0].Room, d[0].BootstrapHost, d[0].BootstrapPort)
		if n == 0 {
			row.Verdict = Info
			return
		}
		list, err := jsonscan.Elements([]byte(d[0].Room))
		distinct := map[string]bool{}
		for _, r := range list {
			distinct[string(r)] = true
		}
		switch {
		case err != nil:
			row.note("one room for the whole batch")
		case a.status == 200 && p[0].Room == d[0].Room && len(distinct) == n:
			row.Verdict = Right
		}
	}
}

func refused(body, contentType string) func(*env, *Row) {
	return func(e *env, row *Row) {
		a := e.ask(e.ctx, []byte(body), options{header: map[string][]string{"Content-Type": {contentType}}})
		row.take(a)
		row.Verdict = Wrong
		legs := len(e.legs(fakeworker.Prefill)) + len(e.legs(fakeworker.Decode))
		if a.status == 400 && legs == 0 {
			row.Verdict = Right
		}
		if legs > 0 {
			row.note("%d leg(s) were sent", legs)
		}
	}
}

func bigBody(e *env, row *Row) {
	before, _ := e.gw.Usage()
	a := e.ask(e.ctx, load.Body(e.api, 64<<20, false, 1, 1), options{})
	e.waitIdle()
	row.take(a)
	row.Verdict = Wrong
	if a.status == 200 || a.status == 413 {
		row.Verdict = Right
	}
	if after, err := e.gw.Usage(); err == nil {
		row.note("resident memory %d → peak %d MiB, %.2f s of CPU", before.RSS>>20, after.PeakRSS>>20, (after.CPU - before.CPU).Seconds())
	}
	for _, l := range slices.Concat(e.legs(fakeworker.Prefill), e.legs(fakeworker.Decode)) {
		row.note("%s got %d bytes", l.Worker, l.BodyBytes)
	}
}
