package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/room"
)

// Info is what a kvferry prefill instance says at InstancePath.
type Info struct {
	Instance room.InstanceID   `json:"instance"`
	Geometry kvlayout.Geometry `json:"geometry"` // of its first rank
	Ranks    []RankAddr        `json:"ranks"`    // control sockets, by unique rank number
	DPSize   int               `json:"dp_size"`
	Context  int               `json:"context"` // tokens
}

// ParseInfo reads the answer at InstancePath. Unknown fields are ignored. Errors are ErrInvalid.
func ParseInfo(b []byte) (Info, error) {
	var i Info
	if err := json.Unmarshal(b, &i); err != nil {
		return Info{}, fmt.Errorf("%w: instance: %w", ErrInvalid, err)
	}
	if i.Instance.IsZero() {
		return Info{}, fmt.Errorf("%w: instance without an id", ErrInvalid)
	}
	if err := i.Geometry.Validate(); err != nil {
		return Info{}, fmt.Errorf("%w: instance: %w", ErrInvalid, err)
	}
	if want := i.Geometry.TP * i.Geometry.PP; len(i.Ranks) != want || want > maxRanks {
		return Info{}, fmt.Errorf("%w: instance with %d ranks, want %d (TP × PP, at most %d)", ErrInvalid, len(i.Ranks), want, maxRanks)
	}
	for n, a := range i.Ranks {
		if a.IP == "" || len(a.IP) > maxText || a.Port < 1 || a.Port > maxPort {
			return Info{}, fmt.Errorf("%w: instance: rank %d is at %s port %d", ErrInvalid, n, shown([]byte(a.IP)), a.Port)
		}
	}
	return i, nil
}

// Limits of a Client.
const (
	defaultTimeout = 5 * time.Second // of one request, as upstream
	maxAnswer      = 4 << 20         // bytes
	maxReason      = 200             // bytes of a refusal that an error shows
)

// Client asks bootstrap servers. Every call takes at most Timeout and the time that its context has left; none belongs on the path that
// schedules rooms. Addresses are host:port, IPv6 in brackets. The zero value works. It is safe for concurrent use.
//
// Errors: ErrUnavailable when nothing answers in time, ErrNotReady (503), ErrNotFound (404), ErrInvalid for a refusal and for an answer
// that makes no sense.
type Client struct {
	HTTP    *http.Client  // nil: one without proxies, shared by all clients
	Timeout time.Duration // of one request; 0: 5 s
}

// plain goes straight to the peer: a proxy or a redirection would make another's answer the peer's.
var plain = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// request is one question to a server of this package.
type request struct {
	method, base, path string
	body               []byte
	token              string // "": none
	timeout            time.Duration
}

// ask sends a request and returns the body of a 200.
func ask(ctx context.Context, h *http.Client, q request) ([]byte, error) {
	if h == nil {
		h = plain
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, q.base+q.path, bytes.NewReader(q.body))
	if err != nil {
		return nil, fmt.Errorf("%w: registry %s: %w", ErrInvalid, q.base, err)
	}
	if len(q.body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.token != "" {
		req.Header.Set("Authorization", "Bearer "+q.token)
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: registry %s: %w", ErrUnavailable, q.base, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read to the end or is not wanted
	if resp.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, maxReason)) // the status says enough
		return nil, fmt.Errorf("%w: registry %s answered %d: %s", errorOf(resp.StatusCode), q.base, resp.StatusCode, room.CleanText(string(reason)))
	}
	answer, err := readAll(resp.Body, maxAnswer)
	switch {
	case err == nil:
		return answer, nil
	case permanent(err):
		return nil, fmt.Errorf("registry %s: answer: %w", q.base, err)
	}
	return nil, fmt.Errorf("%w: registry %s: %w", ErrUnavailable, q.base, err)
}

func (c *Client) do(ctx context.Context, method, addr, path string, body []byte) ([]byte, error) {
	if !ValidAddr(addr) {
		return nil, fmt.Errorf("%w: registry address %s, want host:port", ErrInvalid, shown([]byte(addr)))
	}
	q := request{method: method, base: "http://" + addr, path: path, body: body, timeout: c.Timeout}
	if q.timeout <= 0 {
		q.timeout = defaultTimeout
	}
	return ask(ctx, c.HTTP, q)
}

func at(addr string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("registry %s: %w", addr, err)
}

func rankPath(dp, cp, tp, pp int) string {
	return fmt.Sprintf("%s?prefill_dp_rank=%d&prefill_cp_rank=%d&target_tp_rank=%d&target_pp_rank=%d", routePath, dp, cp, tp, pp)
}

// Topology asks for the sizes of an instance. Errors: ErrNotReady until all its ranks are there.
func (c *Client) Topology(ctx context.Context, addr string) (Topology, error) {
	b, err := c.do(ctx, http.MethodGet, addr, rankPath(-1, -1, -1, -1), nil)
	if err != nil {
		return Topology{}, err
	}
	t, err := ParseTopology(b)
	return t, at(addr, err)
}

// Rank asks where one rank listens.
func (c *Client) Rank(ctx context.Context, addr string, dp int, r kvlayout.Rank) (RankAddr, error) {
	b, err := c.do(ctx, http.MethodGet, addr, rankPath(dp, r.CP, r.TP, r.PP), nil)
	if err != nil {
		return RankAddr{}, err
	}
	a, err := ParseRankAddr(b)
	return a, at(addr, err)
}

// DPRanks asks which data-parallel ranks serve some rooms, at most 65,536; those that prefill has not named yet are left out.
func (c *Client) DPRanks(ctx context.Context, addr string, ids []room.ID) (map[room.ID]int, error) {
	if len(ids) > maxQueried {
		return nil, fmt.Errorf("%w: %d rooms in one question, limit %d", ErrTooLarge, len(ids), maxQueried)
	}
	body := []byte(`{"bootstrap_rooms":[`)
	for i, id := range ids {
		if i > 0 {
			body = append(body, ',')
		}
		body = id.Append(body)
	}
	b, err := c.do(ctx, http.MethodPost, addr, queryPath, append(body, "]}"...))
	if err != nil {
		return nil, err
	}
	known, err := parseRanks(b)
	return known, at(addr, err)
}

// DPRank asks which data-parallel rank serves a room. Errors: ErrNotFound until prefill has said so.
func (c *Client) DPRank(ctx context.Context, addr string, id room.ID) (int, error) {
	known, err := c.DPRanks(ctx, addr, []room.ID{id})
	if err != nil {
		return 0, err
	}
	rank, ok := known[id]
	if !ok {
		return 0, fmt.Errorf("%w: registry %s: DP rank of room %d", ErrNotFound, addr, id)
	}
	return rank, nil
}

// RegisterDPRank tells which data-parallel rank serves a room.
func (c *Client) RegisterDPRank(ctx context.Context, addr string, id room.ID, rank int) error {
	body := strconv.AppendInt(append(id.Append([]byte(`{"bootstrap_room":`)), `,"dp_rank":`...), int64(rank), 10)
	_, err := c.do(ctx, http.MethodPost, addr, registerPath, append(body, '}'))
	return err
}

// Health asks whether the instance works.
func (c *Client) Health(ctx context.Context, addr string) error {
	_, err := c.do(ctx, http.MethodGet, addr, healthPath, nil)
	return err
}

// Info asks a kvferry instance for all at once. Errors: ErrNotFound when it is a foreign one.
func (c *Client) Info(ctx context.Context, addr string) (Info, error) {
	b, err := c.do(ctx, http.MethodGet, addr, InstancePath, nil)
	if err != nil {
		return Info{}, err
	}
	i, err := ParseInfo(b)
	return i, at(addr, err)
}

// announceTries and its pauses of 1, 2, 4 and 8 s, each shortened at random by up to a quarter, are upstream's.
const announceTries = 5

// Announce puts a rank's row into its instance's bootstrap server, in five tries. A refusal (ErrInvalid) is final and not tried again.
func (c *Client) Announce(ctx context.Context, addr string, row RankRow) error {
	body, err := row.Append(nil)
	if err != nil {
		return err
	}
	for try, pause := 1, time.Second; ; try, pause = try+1, 2*pause {
		_, err = c.do(ctx, http.MethodPut, addr, routePath, body)
		switch {
		case err == nil:
			return nil
		case permanent(err), try == announceTries:
			return fmt.Errorf("announce rank after %d tries: %w", try, err)
		}
		if !sleep(ctx, time.Duration(float64(pause)*(0.75+rand.Float64()/4))) {
			return fmt.Errorf("announce rank after %d tries: %w (%w)", try, err, ctx.Err())
		}
	}
}

// sleep waits for d; false: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ValidAddr reports whether addr is host:port, IPv6 in brackets, with a port from 1 to 65535.
func ValidAddr(addr string) bool {
	u, err := url.Parse("http://" + addr)
	if err != nil || u.Host != addr || u.Hostname() == "" || len(addr) > maxText {
		return false
	}
	port, err := strconv.Atoi(u.Port())
	return err == nil && port >= 1 && port <= maxPort
}
