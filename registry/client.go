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

// Client asks bootstrap servers. Every call takes at most Timeout. It is safe for concurrent use.
type Client struct {
	HTTP    *http.Client  // nil: a client of its own without proxies
	Timeout time.Duration // of one request; 0: 5 s, as upstream
}

var plain = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second, DisableCompression: true}}

const maxAnswer = 8 << 20

// do sends a request and returns the body of a 200.
func (c *Client) do(ctx context.Context, method, addr, path string, body []byte) ([]byte, error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: registry address %q: %w", ErrInvalid, addr, err)
	}
	h := c.HTTP
	if h == nil {
		h = plain
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: registry %s: %w", ErrUnavailable, addr, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read to the end or is not wanted
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%w: registry %s: %w", ErrUnavailable, addr, err)
	}
	kind := ErrInvalid
	switch resp.StatusCode {
	case http.StatusOK:
		return answer, nil
	case http.StatusServiceUnavailable:
		kind = ErrNotReady
	case http.StatusNotFound:
		kind = ErrNotFound
	}
	return nil, fmt.Errorf("%w: registry %s answered %d: %.200s", kind, addr, resp.StatusCode, answer)
}

// Topology asks for the sizes of an instance. Errors: ErrNotReady until all its ranks are there.
func (c *Client) Topology(ctx context.Context, addr string) (Topology, error) {
	b, err := c.do(ctx, http.MethodGet, addr, "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1", nil)
	if err != nil {
		return Topology{}, err
	}
	return parseTopology(b)
}

// Rank asks where one rank listens. Errors: ErrNotFound, ErrNotReady.
func (c *Client) Rank(ctx context.Context, addr string, dp int, r kvlayout.Rank) (a RankAddr, err error) {
	b, err := c.do(ctx, http.MethodGet, addr, fmt.Sprintf("/route?prefill_dp_rank=%d&prefill_cp_rank=%d&target_tp_rank=%d&target_pp_rank=%d", dp, r.CP, r.TP, r.PP), nil)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(b, &a); err != nil || a.IP == "" || a.Port < 1 || a.Port > 65535 {
		return a, fmt.Errorf("%w: registry %s: rank address %.200s", ErrInvalid, addr, b)
	}
	return a, nil
}

// DPRank asks which data-parallel rank serves a room. Errors: ErrNotFound until prefill has said so.
func (c *Client) DPRank(ctx context.Context, addr string, id room.ID) (int, error) {
	b, err := c.do(ctx, http.MethodPost, addr, "/query_dp_ranks", []byte(`{"bootstrap_rooms":[`+id.String()+`]}`))
	if err != nil {
		return 0, err
	}
	var known map[string]int
	if err := json.Unmarshal(b, &known); err != nil {
		return 0, fmt.Errorf("%w: registry %s: DP ranks %.200s", ErrInvalid, addr, b)
	}
	rank, ok := known[id.String()]
	if !ok {
		return 0, fmt.Errorf("%w: DP rank of room %d", ErrNotFound, id)
	}
	return rank, nil
}

// RegisterDPRank tells which data-parallel rank serves a room.
func (c *Client) RegisterDPRank(ctx context.Context, addr string, id room.ID, rank int) error {
	_, err := c.do(ctx, http.MethodPost, addr, "/register_dp_rank", []byte(`{"bootstrap_room":`+id.String()+`,"dp_rank":`+strconv.Itoa(rank)+`}`))
	return err
}

// Health asks whether the instance works.
func (c *Client) Health(ctx context.Context, addr string) error {
	_, err := c.do(ctx, http.MethodGet, addr, "/health", nil)
	return err
}

// Info asks a kvferry instance for all at once. Errors: ErrNotFound when it is a foreign one.
func (c *Client) Info(ctx context.Context, addr string) (i Info, err error) {
	b, err := c.do(ctx, http.MethodGet, addr, InstancePath, nil)
	if err != nil {
		return i, err
	}
	if err := json.Unmarshal(b, &i); err != nil {
		return i, fmt.Errorf("%w: registry %s: instance: %w", ErrInvalid, addr, err)
	}
	if i.Instance.IsZero() || len(i.Ranks) == 0 || i.Geometry.Validate() != nil || len(i.Ranks) != i.Geometry.TP*i.Geometry.PP {
		return i, fmt.Errorf("%w: registry %s: instance %.200s", ErrInvalid, addr, b)
	}
	return i, nil
}

// Announce puts a rank's row into its instance's bootstrap server: five tries with pauses of 1, 2, 4 and 8 s, each shortened at random by up
// to a quarter, as upstream.
func (c *Client) Announce(ctx context.Context, addr string, row RankRow) error {
	body, err := json.Marshal(row)
	if err != nil {
		return fmt.Errorf("%w: rank row: %w", ErrInvalid, err)
	}
	for try, pause := 0, time.Second; ; try, pause = try+1, 2*pause {
		_, err = c.do(ctx, http.MethodPut, addr, "/route", body)
		if err == nil || try == 4 {
			return err
		}
		select {
		case <-time.After(time.Duration(float64(pause) * (0.75 + rand.Float64()/4))):
		case <-ctx.Done():
			return fmt.Errorf("announce rank at %s: %w", addr, ctx.Err())
		}
	}
}

// ValidAddr reports whether addr is host:port.
func ValidAddr(addr string) bool {
	u, err := url.Parse("http://" + addr)
	return err == nil && u.Host == addr && u.Port() != ""
}
