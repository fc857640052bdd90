package archtest

const module = "github.com/kvferry/kvferry"

// rule says which packages of ours a package may import outside its tests. A trailing /... covers a package and those below it.
type rule struct {
	pkg    string   // below the module
	may    []string // below the module
	reason string
}

// layers is docs/architecture.md's picture as a table; the first rule that covers a package applies. A package without a rule fails.
var layers = []rule{
	{"room", nil, "the words everybody shares know nobody"},
	{"event", []string{"room"}, "every part emits into the stream, so it depends on none"},
	{"wire", []string{"room"}, "messages are bytes and values; who sends them is not their business"},
	{"kvlayout", []string{"room"}, "geometry needs numbers only"},
	{"node", []string{"room", "event", "wire", "kvlayout"}, "the protocol is decided without I/O, so it sees no package that has any"},
	{"zmtp", []string{"event"}, "a transport of frames that knows no message and no room"},
	{"registry/...", []string{"room", "event", "wire", "kvlayout", "registry/..."}, "who is where: below those that ask"},
	{"transfer", []string{"event"}, "an engine moves bytes and knows nothing of rooms"},
	{"transfer/transfertest", []string{"transfer"}, "the suite knows the interface, never an engine"},
	{"transfer/space", []string{"transfer", "event"}, "the receiver's address space is numbers and bytes; rooms are node's"},
	{"transfer/...", []string{"transfer", "transfer/space", "event"}, "an engine knows the interface, never another engine or a room"},
	{"backend/...", []string{"backend", "node", "wire", "kvlayout", "room", "event", "transfer"}, "a dialect turns messages into node events; sockets are handoff's"},
	{"handoff/...", []string{"handoff/...", "backend/...", "transfer/...", "registry/...", "zmtp", "node", "wire", "kvlayout", "room", "event"}, "the shell around node: everything below, nothing above"},
	{"llm/...", []string{"llm/...", "kvlayout"}, "the model computes; it does not know that its KV travels"},
	{"model", []string{"llm/..."}, "the bundled weights"},
	{"worker/...", []string{"worker/...", "llm/...", "handoff/...", "backend/...", "registry/...", "transfer/...", "node", "kvlayout", "room", "event"}, "an instance: the engine and its hand-offs, not the gateway"},
	{"gateway/...", []string{"gateway/...", "registry/...", "room", "event"}, "sees workers over HTTP only, so that SGLang's serve as well"},
	{"drill/...", []string{"drill/...", "gateway/...", "worker/...", "handoff/...", "backend/...", "transfer/...", "registry/...", "zmtp", "node", "wire", "kvlayout", "room", "event"}, "breaks whole instances"},
	{"dashboard/...", []string{"dashboard/...", "registry/...", "room", "event"}, "reads the stream"},
	{"sim/...", []string{"sim/...", "node", "wire", "kvlayout", "room", "event"}, "runs node under seeds, so it has no real network or clock"},
	{"internal/cli/...", []string{"..."}, "the command line puts the parts together"},
	{"cmd/kvferry", []string{"internal/cli"}, "main only"},
	{"internal/vectors", nil, "loads recorded tables for tests; imported by tests only"},
	{"internal/archtest", nil, "tests only"},
	{"internal/interoppeer", []string{"handoff/...", "backend/...", "transfer/...", "registry/...", "zmtp", "node", "wire", "kvlayout", "room", "event"}, "a peer for the Python harness, over the library's public API"},
	{"internal/e2e", nil, "tests only: drives processes"},
	{"interop", nil, "tests only: drives processes"},
}

// testOnly lists packages that only tests may import.
var testOnly = map[string]string{
	"internal/vectors":      "recorded tables weigh megabytes and are no part of the product",
	"transfer/transfertest": "imports testing",
	"internal/interoppeer":  "a main package",
}

// pureImports are the packages of the standard library that a pure package may import, with a word on those that need one.
var pureImports = map[string]string{
	"bytes": "", "cmp": "", "container/heap": "", "container/list": "", "encoding": "", "encoding/base64": "", "encoding/binary": "", "encoding/hex": "", "encoding/json": "",
	"errors": "", "fmt": "without the functions that print to standard output", "hash": "", "hash/crc32": "", "hash/fnv": "", "io": "interfaces and sentinel errors", "iter": "",
	"maps": "without its iterators where map iteration is refused", "math": "", "math/bits": "", "math/rand/v2": "without the global source", "net/netip": "an address is a value",
	"slices": "", "sort": "", "strconv": "", "strings": "", "time": "instants and durations as values; the clock is refused", "unicode": "", "unicode/utf8": "",
}

// purity says what a pure package may do beyond the common rule: no I/O, no clock, no global randomness, no goroutine, no channel, no lock.
type purity struct {
	pkg      string
	mapRange bool              // may iterate over maps
	also     map[string]string // further imports, each with its reason
}

var pure = []purity{
	{pkg: "room"},
	{pkg: "wire", also: map[string]string{"unsafe": "page lists are viewed as little-endian words without a copy"}},
	{pkg: "kvlayout"},
	{pkg: "node"},
	{pkg: "sim"},
}

// refused are functions of allowed packages that read a clock, print, or draw from a global source.
var refused = map[string][]string{
	"time":         {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"},
	"fmt":          {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
	"math/rand/v2": {"Float32", "Float64", "ExpFloat64", "NormFloat64", "Int", "IntN", "Int32", "Int32N", "Int64", "Int64N", "Uint", "UintN", "Uint32", "Uint32N", "Uint64", "Uint64N", "N", "Perm", "Shuffle"},
	"io":           {"Pipe"},
}

// settings lists where flags and the environment may be read; everywhere else values are passed in. Tests read what they like.
var settings = map[string]string{
	"internal/cli":         "the one place",
	"internal/vectors":     "KVFERRY_VECTORS names the folder of the tables under test",
	"internal/interoppeer": "its arguments are the Python harness's, not an operator's",
}

// environment are the functions that read settings, and flagPackages the packages that parse them.
var (
	environment  = []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"}
	flagPackages = []string{"flag", "github.com/spf13/pflag", "github.com/spf13/cobra"}
)

// forbidden are patterns that no tracked file may contain. They are put together here so that this file contains none.
var forbidden = []struct{ pattern, reason string }{
	{`(^|[^\w./-])/` + `(root|work|home/\w+)/`, "a path of one machine"},
	{`/tmp/` + `kvferry\b`, "a path of one machine"},
	{`\b(proxy\.` + `golang\.org|sum\.` + `golang\.org|files\.` + `pythonhosted\.org|(?:registry\.` + `npmjs\.org)|deb\.` + `debian\.org)\b`, "a registry's host: clients know theirs"},
	{`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`, "a plan; an issue holds plans"},
	{`\bissue #` + `\d`, "history; the tree speaks of itself in the present"},
}
