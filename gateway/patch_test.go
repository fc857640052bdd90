package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

var meetingForTest = []setting{{"bootstrap_host", `"h"`}, {"bootstrap_port", "8998"}, {"bootstrap_room", "9223372036854775807"}}

const added = `"bootstrap_host":"h","bootstrap_port":8998,"bootstrap_room":9223372036854775807`

func TestPatch(t *testing.T) {
	for in, want := range map[string]string{
		`{}`:                   `{` + added + `}`,
		`{ }`:                  `{ ` + added + `}`,
		`{"a":1}`:              `{"a":1,` + added + `}`,
		" {\n\t\"a\" : 1\n}\n": " {\n\t\"a\" : 1\n," + added + "}\n",
		`{"n":123456789012345678901234567890,"f":1.10,"e":1E5}`: `{"n":123456789012345678901234567890,"f":1.10,"e":1E5,` + added + `}`,
		`{"bootstrap_room":7,"a":"}"}`:                          `{"bootstrap_room":9223372036854775807,"a":"}","bootstrap_host":"h","bootstrap_port":8998}`,
		`{"bootstrap_\u0072oom" : [1,{"x":"\\\""}] ,"b":null}`:  `{"bootstrap_\u0072oom" : 9223372036854775807 ,"b":null,"bootstrap_host":"h","bootstrap_port":8998}`,
		`{"a":{"bootstrap_room":1},"s":"\"bootstrap_room\":2"}`: `{"a":{"bootstrap_room":1},"s":"\"bootstrap_room\":2",` + added + `}`,
	} {
		ms, err := scan([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := string(patch([]byte(in), ms, meetingForTest)); got != want {
			t.Errorf("%s became\n%s, want\n%s", in, got, want)
		}
	}
	for in, says := range map[string]string{`{"a":}`: "byte 6", ``: "byte 0", `[1]`: "JSON object", `"x"`: "JSON object", `{"a":1} x`: "byte 9", "{\"a\":\"\x01\"}": "byte 7"} {
		if _, err := scan([]byte(in)); !errors.Is(err, errBody) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want an error that says %q", in, err, says)
		}
	}
}

// A body that is patched is valid exactly when it was, has the members, and is otherwise the same to the byte.
func FuzzPatch(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,2,{"b":"\\"}],"bootstrap_room":5}`, `{"bootstrap_host":null}`, `{"a":-1.5e3 , "b":tru}`, ` {"":""} `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		ms, err := scan(in)
		var obj map[string]json.RawMessage
		if valid := json.Unmarshal(in, &obj) == nil && obj != nil; valid != (err == nil) {
			t.Fatalf("%q: valid %v, %v", in, valid, err)
		}
		if err != nil {
			return
		}
		out := patch(in, ms, meetingForTest)
		var got map[string]json.RawMessage
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q became %q: %v", in, out, err)
		}
		for _, s := range meetingForTest {
			if string(got[s.name]) != s.value {
				t.Fatalf("%q became %q: %s is %s", in, out, s.name, got[s.name])
			}
		}
		for k, v := range obj {
			if !strings.HasPrefix(k, "bootstrap_") && !bytes.Equal(v, got[k]) {
				t.Fatalf("%q became %q: member %q changed", in, out, k)
			}
		}
	})
}

func TestParseWorker(t *testing.T) {
	for in, want := range map[string]Worker{
		"http://10.0.0.1:8001@8998":           {URL: "http://10.0.0.1:8001", Bootstrap: "10.0.0.1:8998"},
		"10.0.0.1:8001":                       {URL: "http://10.0.0.1:8001", Bootstrap: ""},
		"http://[2001:db8::1]:8001@8998":      {URL: "http://[2001:db8::1]:8001", Bootstrap: "[2001:db8::1]:8998"},
		"https://w.example/@10.0.0.9:7000":    {URL: "https://w.example", Bootstrap: "10.0.0.9:7000"},
		"http://10.0.0.1:8001@10.0.0.2:65535": {URL: "http://10.0.0.1:8001", Bootstrap: "10.0.0.2:65535"},
	} {
		if got, err := ParseWorker(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "ftp://x", "http://x@99999", "http://x@a:b", "http://"} {
		if w, err := ParseWorker(in); err == nil {
			t.Errorf("%q became %+v", in, w)
		}
	}
}

func TestBatch(t *testing.T) {
	for in, want := range map[string]int{`/generate {"text":["a","b"]}`: 2, `/generate {"text":"a"}`: 0, `/generate {"input_ids":[1,2]}`: 0, `/generate {"input_ids":[[1],[2],[3]]}`: 3,
		`/v1/completions {"prompt":["a"]}`: 1, `/v1/completions {"prompt":[1,2,3]}`: 0, `/v1/completions {"prompt":[]}`: 0, `/v1/chat/completions {"prompt":["a","b"]}`: 0} {
		path, body, _ := strings.Cut(in, " ")
		ms, err := scan([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := batchOf(path, []byte(body), ms); got != want {
			t.Errorf("%s: %d, want %d", in, got, want)
		}
	}
}
