package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Bounds of a bootstrap server.
const (
	maxRowBody  = 64 << 10
	maxRoomBody = 8 << 20
	roomLife    = 120 * time.Second // of a room → DP rank entry, as upstream
	maxRooms    = 1 << 20           // the oldest entries give way
)

// InstancePath is the native route, where a kvferry prefill instance says all about itself at once.
const InstancePath = "/kvferry/v1/instance"

// Bootstrap is the bootstrap server of one prefill instance. The zero value is not usable; see NewBootstrap.
type Bootstrap struct {
	healthy  func() bool
	instance func() any
	now      func() time.Time

	mu    sync.Mutex
	first *RankRow // fixes the sizes
	rows  map[rowKey]RankAddr
	rooms map[room.ID]roomEntry
	order []roomEntry // by age, for expiry
}

type rowKey struct{ dp, cp, tp, pp int }

type roomEntry struct {
	id   room.ID
	rank int
	at   time.Time
}

// NewBootstrap makes an empty server. healthy says whether the instance works (nil: always); instance is what InstancePath answers, encoded
// as JSON (nil: 404, as a foreign server).
func NewBootstrap(healthy func() bool, instance func() any) *Bootstrap {
	if healthy == nil {
		healthy = func() bool { return true }
	}
	return &Bootstrap{healthy: healthy, instance: instance, now: time.Now, rows: map[rowKey]RankAddr{}, rooms: map[room.ID]roomEntry{}}
}

// Put takes a rank's row, as PUT /route does. A row that comes again replaces itself and is not counted twice.
func (b *Bootstrap) Put(r RankRow) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.first == nil:
		b.first = &r
	case !bytes.Equal(b.first.SpecLayout, r.SpecLayout):
		return fmt.Errorf("%w: inconsistent dsv41_spec_layout across prefill ranks", ErrInvalid)
	case b.first.Policy != r.Policy:
		return fmt.Errorf("%w: inconsistent decode_allocation_policy across prefill ranks", ErrInvalid)
	}
	_, dp := r.dp()
	b.rows[rowKey{dp, r.CPRank, r.TPRank, r.PPRank}] = RankAddr{r.IP, r.Port}
	return nil
}

// ready reports whether every rank of the instance is there.
func (b *Bootstrap) ready() bool {
	if b.first == nil {
		return false
	}
	dp, _ := b.first.dp()
	return len(b.rows) >= dp*b.first.CPSize*b.first.TPSize*b.first.PPSize
}

// Handler serves all routes.
func (b *Bootstrap) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/route", b.route)
	m.HandleFunc("/health", only(http.MethodGet, b.health))
	m.HandleFunc("/register_dp_rank", only(http.MethodPost, b.registerRank))
	m.HandleFunc("/query_dp_ranks", only(http.MethodPost, b.queryRanks))
	m.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusNotFound, "404: Not Found") })
	if b.instance != nil {
		m.HandleFunc("GET "+InstancePath, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, b.instance()) })
	}
	return m
}

func only(method string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			text(w, http.StatusMethodNotAllowed, "405: Method Not Allowed")
			return
		}
		h(w, r)
	}
}

func text(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(s)) // the client may be gone
}

func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		text(w, http.StatusInternalServerError, err.Error())
		return
	}
	body = spaced(body)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(body) // the client may be gone
}

// spaced puts a blank behind every comma and colon outside of strings, as upstream's encoder does.
func spaced(b []byte) []byte {
	out := make([]byte, 0, len(b)+len(b)/4)
	inside := false
	for i := 0; i < len(b); i++ {
		out = append(out, b[i])
		switch {
		case inside && b[i] == '\\':
			i++
			out = append(out, b[i])
		case b[i] == '"':
			inside = !inside
		case !inside && (b[i] == ',' || b[i] == ':'):
			out = append(out, ' ')
		}
	}
	return out
}

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	if !errors.Is(err, ErrInvalid) {
		status = http.StatusInternalServerError
	}
	text(w, status, err.Error())
}

func (b *Bootstrap) health(w http.ResponseWriter, _ *http.Request) {
	if !b.healthy() {
		text(w, http.StatusServiceUnavailable, "the instance does not work")
		return
	}
	text(w, http.StatusOK, "OK")
}

func (b *Bootstrap) route(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPut:
		b.putRoute(w, r)
	case http.MethodGet:
		b.getRoute(w, r)
	default: // upstream labels this text as JSON
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(http.StatusMethodNotAllowed)
		_, _ = w.Write([]byte("Method not allowed"))
	}
}

func (b *Bootstrap) putRoute(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r.Body, maxRowBody)
	var row RankRow
	if err == nil {
		row, err = parseRow(body)
	}
	if err == nil {
		err = b.Put(row)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	text(w, http.StatusOK, "OK")
}

func (b *Bootstrap) getRoute(w http.ResponseWriter, r *http.Request) {
	var at [4]int
	q := r.URL.Query()
	names := [4]string{"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"}
	for _, name := range names {
		if q.Get(name) == "" {
			text(w, http.StatusBadRequest, "Missing inputs for bootstrap server.")
			return
		}
	}
	for i, name := range names {
		n, err := strconv.Atoi(q.Get(name))
		if err != nil {
			text(w, http.StatusBadRequest, fmt.Sprintf("%s is %.40q, want a whole number", name, q.Get(name)))
			return
		}
		at[i] = n
	}
	b.mu.Lock()
	ready, have, first := b.ready(), len(b.rows), b.first
	addr, known := b.rows[rowKey{at[0], at[1], at[2], at[3]}]
	b.mu.Unlock()
	switch {
	case !ready:
		text(w, http.StatusServiceUnavailable, fmt.Sprintf("Prefill server not fully registered yet (%d workers registered).", have))
	case at == [4]int{-1, -1, -1, -1}:
		dp, _ := first.dp()
		writeJSON(w, topologyAnswer{Topology: Topology{TPSize: first.TPSize, CPSize: first.CPSize, DPSize: dp, PPSize: first.PPSize, PageSize: first.PageSize, DType: first.DType,
			FollowRoom: first.LoadBalance == FollowRoom, LayerSplit: first.LayerSplit, KVSharding: first.KVSharding, Policy: first.Policy, HTTPPort: first.HTTPPort,
			Layout: first.Layout, SpecLayout: first.SpecLayout}})
	case !known:
		text(w, http.StatusNotFound, fmt.Sprintf("Bootstrap info not found for dp_rank=%d cp_rank=%d tp_rank=%d pp_rank=%d", at[0], at[1], at[2], at[3]))
	default:
		writeJSON(w, addr)
	}
}

// roomNumber is a room in JSON, as a number or as text.
type roomNumber room.ID

func (n *roomNumber) UnmarshalJSON(b []byte) error {
	if len(b) > 1 && b[0] == '"' {
		b = b[1 : len(b)-1]
	}
	id, err := room.ParseID(b)
	*n = roomNumber(id)
	return err
}

func (b *Bootstrap) registerRank(w http.ResponseWriter, r *http.Request) {
	var v struct {
		Room *roomNumber `json:"bootstrap_room"`
		Rank *integer    `json:"dp_rank"`
	}
	body, err := readBody(r.Body, maxRowBody)
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	if err != nil || v.Room == nil || v.Rank == nil {
		text(w, http.StatusBadRequest, fmt.Sprintf("want {\"bootstrap_room\": room, \"dp_rank\": rank}: %v", err))
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.expire(now)
	e := roomEntry{room.ID(*v.Room), int(*v.Rank), now}
	b.rooms[e.id] = e
	b.order = append(b.order, e)
	text(w, http.StatusOK, "OK")
}

// expire drops entries that are too old or too many. An entry that was set again has a newer time than its place in order.
func (b *Bootstrap) expire(now time.Time) {
	for len(b.order) > 0 && (now.Sub(b.order[0].at) > roomLife || len(b.order) >= maxRooms) {
		if e := b.order[0]; b.rooms[e.id] == e {
			delete(b.rooms, e.id)
		}
		b.order = b.order[1:]
	}
}

func (b *Bootstrap) queryRanks(w http.ResponseWriter, r *http.Request) {
	var v struct {
		Rooms *[]roomNumber `json:"bootstrap_rooms"`
	}
	body, err := readBody(r.Body, maxRoomBody)
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	if err != nil || v.Rooms == nil {
		text(w, http.StatusBadRequest, fmt.Sprintf("want {\"bootstrap_rooms\": [room, …]}: %v", err))
		return
	}
	b.mu.Lock()
	b.expire(b.now())
	known := map[string]int{}
	for _, n := range *v.Rooms {
		if e, ok := b.rooms[room.ID(n)]; ok {
			known[room.ID(n).String()] = e.rank
		}
	}
	b.mu.Unlock()
	writeJSON(w, known)
}
