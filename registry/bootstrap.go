package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Bounds of the bodies that a bootstrap server reads, in bytes.
const (
	maxRowBody   = 64 << 10
	maxQueryBody = 24 * maxQueried // a room has at most 19 digits, two quotes, a comma and a blank
)

// Paths of a bootstrap server.
const (
	routePath    = "/route"
	healthPath   = "/health"
	registerPath = "/register_dp_rank"
	queryPath    = "/query_dp_ranks"
	// InstancePath is the native route, where a kvferry prefill instance says all about itself at once. A foreign server answers 404.
	InstancePath = "/kvferry/v1/instance"
)

// Bootstrap is the bootstrap server of one prefill instance. Make it with NewBootstrap. It is safe for concurrent use and starts no
// goroutine.
//
// It differs from upstream's on purpose: a rank that registers twice is counted once; a row that can't be right is 400 with the reason, not
// 500; a row of an instance of other sizes is refused; /health tells the truth.
type Bootstrap struct {
	healthy  func() bool
	instance func() any

	mu    sync.Mutex
	first *RankRow // fixes the sizes
	rows  map[rowKey]RankAddr
	rooms roomRanks
}

type rowKey struct{ dp, cp, tp, pp int }

// everywhere asks for the topology.
var everywhere = rowKey{-1, -1, -1, -1}

// NewBootstrap makes an empty server. healthy says whether the instance works (nil: always); instance is what InstancePath answers, encoded
// as JSON (nil: 404, as a foreign server). Both are called by many goroutines at once and must not block.
func NewBootstrap(healthy func() bool, instance func() any) *Bootstrap {
	if healthy == nil {
		healthy = func() bool { return true }
	}
	return &Bootstrap{healthy: healthy, instance: instance, rows: map[rowKey]RankAddr{}}
}

// Put takes a rank's row, as PUT /route does. A row that comes again replaces itself and is not counted twice. The first row fixes what the
// topology says; a later one with other sizes, speculative layout or allocation policy is ErrInvalid.
func (b *Bootstrap) Put(r RankRow) error {
	if err := r.Validate(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.first == nil:
		b.first = &r
	case !sameJSON(b.first.SpecLayout, r.SpecLayout):
		return conflict("DeepSeek-V4.1 DSpark PD layout differs across prefill ranks") // upstream's words, as the next one
	case b.first.Policy != r.Policy:
		return conflict("Inconsistent prefill allocation policies")
	case b.first.sizes() != r.sizes():
		return fmt.Errorf("%w: sizes (dp, cp, tp, pp) are %v, the instance's first rank said %v", ErrInvalid, r.sizes(), b.first.sizes())
	}
	_, dp := r.dp()
	b.rows[rowKey{dp, r.CPRank, r.TPRank, r.PPRank}] = RankAddr{r.IP, r.Port}
	return nil
}

// conflict is an ErrInvalid whose whole text is on the wire.
type conflict string

func (c conflict) Error() string        { return string(c) }
func (c conflict) Is(target error) bool { return target == ErrInvalid }

// ready reports whether every rank of the instance is there. Rows have valid ranks and the same sizes, so counting them is enough.
func (b *Bootstrap) ready() bool {
	if b.first == nil {
		return false
	}
	n := 1
	for _, size := range b.first.sizes() {
		n *= size
	}
	return len(b.rows) == n
}

// Topology is what the server says of the instance. Errors: ErrNotReady until all its ranks are there.
func (b *Bootstrap) Topology() (Topology, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ready() {
		return Topology{}, fmt.Errorf("%w: %d ranks have registered", ErrNotReady, len(b.rows))
	}
	f := b.first
	dp, _ := f.dp()
	return Topology{TPSize: f.TPSize, CPSize: f.CPSize, DPSize: dp, PPSize: f.PPSize, PageSize: f.PageSize, DType: f.DType, FollowRoom: f.LoadBalance == FollowRoom,
		LayerSplit: f.LayerSplit, Layout: f.Layout, SpecLayout: f.SpecLayout, Policy: f.Policy, KVSharding: f.KVSharding, HTTPPort: f.HTTPPort}, nil
}

// Handler serves all routes. It belongs on a server with time limits, such as NewServer's.
func (b *Bootstrap) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc(routePath, b.route)
	m.HandleFunc(healthPath, only(http.MethodGet, b.health))
	m.HandleFunc(registerPath, only(http.MethodPost, b.registerRank))
	m.HandleFunc(queryPath, only(http.MethodPost, b.queryRanks))
	m.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusNotFound, "404: Not Found") })
	if b.instance != nil {
		m.HandleFunc("GET "+InstancePath, func(w http.ResponseWriter, _ *http.Request) {
			body, err := json.Marshal(b.instance())
			if err != nil {
				writeText(w, http.StatusInternalServerError, err.Error())
				return
			}
			writeJSON(w, body)
		})
	}
	return m
}

func only(method string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			writeText(w, http.StatusMethodNotAllowed, "405: Method Not Allowed")
			return
		}
		h(w, r)
	}
}

func (b *Bootstrap) health(w http.ResponseWriter, _ *http.Request) {
	if !b.healthy() {
		writeText(w, http.StatusServiceUnavailable, "the instance does not work")
		return
	}
	writeText(w, http.StatusOK, "OK")
}

func (b *Bootstrap) route(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPut:
		b.putRoute(w, r)
	case http.MethodGet:
		b.getRoute(w, r)
	default: // upstream labels this text as JSON
		w.Header().Set("Content-Type", jsonType)
		w.WriteHeader(http.StatusMethodNotAllowed)
		_, _ = w.Write([]byte("Method not allowed")) // the client may be gone
	}
}

func (b *Bootstrap) putRoute(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r, maxRowBody)
	var row RankRow
	if err == nil {
		row, err = ParseRankRow(body)
	}
	if err == nil {
		err = b.Put(row)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeText(w, http.StatusOK, "OK")
}

func (b *Bootstrap) getRoute(w http.ResponseWriter, r *http.Request) {
	var k rowKey
	q := r.URL.Query()
	var bad string
	for _, f := range []struct {
		name string
		dst  *int
	}{{"prefill_dp_rank", &k.dp}, {"prefill_cp_rank", &k.cp}, {"target_tp_rank", &k.tp}, {"target_pp_rank", &k.pp}} {
		v := q.Get(f.name)
		if v == "" {
			writeText(w, http.StatusBadRequest, "Missing inputs for bootstrap server.")
			return
		}
		n, err := strconv.Atoi(v)
		if err != nil && bad == "" {
			bad = fmt.Sprintf("%s is %s, want a whole number", f.name, shown([]byte(v)))
		}
		*f.dst = n
	}
	if bad != "" {
		writeText(w, http.StatusBadRequest, bad)
		return
	}
	t, err := b.Topology()
	b.mu.Lock()
	have := len(b.rows)
	addr, known := b.rows[k]
	b.mu.Unlock()
	var body []byte
	switch {
	case err != nil:
		writeText(w, http.StatusServiceUnavailable, fmt.Sprintf("Prefill server not fully registered yet (%d workers registered).", have))
		return
	case k == everywhere:
		body, err = t.Append(nil)
	case !known:
		writeText(w, http.StatusNotFound, fmt.Sprintf("Bootstrap info not found for dp_rank=%d cp_rank=%d tp_rank=%d pp_rank=%d", k.dp, k.cp, k.tp, k.pp))
		return
	default:
		body, err = addr.Append(nil)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, body)
}

// SetDPRank remembers for 120 s which data-parallel rank serves a room, as POST /register_dp_rank does.
func (b *Bootstrap) SetDPRank(id room.ID, rank int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rooms.set(id, rank, time.Now())
}

func (b *Bootstrap) registerRank(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r, maxRowBody)
	var id room.ID
	var rank int
	if err == nil {
		id, rank, err = parseRoomRank(body)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	b.SetDPRank(id, rank)
	writeText(w, http.StatusOK, "OK")
}

func (b *Bootstrap) queryRanks(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r, maxQueryBody)
	var ids []roomNumber
	if err == nil {
		ids, err = parseQuery(body)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	b.mu.Lock()
	b.rooms.expire(time.Now(), maxRooms)
	answer := appendRanks(nil, ids, b.rooms.get)
	b.mu.Unlock()
	writeJSON(w, answer)
}
