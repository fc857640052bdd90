package registry

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Load is how busy an instance is.
type Load struct {
	FreePages  int `json:"free_pages"` // of the rank that has the fewest
	TotalPages int `json:"total_pages"`
	Running    int `json:"running"` // requests
	Waiting    int `json:"waiting"` // requests
}

// Instance is one engine in one incarnation, as it registers.
type Instance struct {
	ID        room.InstanceID `json:"id"`
	Started   time.Time       `json:"started"`             // of the incarnation; at one URL, the later one wins
	Side      room.Side       `json:"-"`                   // in JSON by its name: "prefill" or "decode"
	URL       string          `json:"url"`                 // base of its HTTP API, without a slash at the end: its identity across incarnations
	Bootstrap string          `json:"bootstrap,omitempty"` // prefill: host:port of its bootstrap server
	Model     string          `json:"model"`
	Context   int             `json:"context"` // tokens
	PageSize  int             `json:"page_size,omitempty"`
	TP        int             `json:"tp,omitempty"`
	PP        int             `json:"pp,omitempty"`
	Ranks     int             `json:"ranks"`             // how many make it whole; 0 means 1
	Present   []int           `json:"present,omitempty"` // the ranks that this registration is for, ascending; empty: all
	Load      Load            `json:"load"`
	Draining  bool            `json:"draining,omitempty"`
	Unhealthy string          `json:"unhealthy,omitempty"` // why it does not work; "": it does
}

// Ready reports whether all ranks are present.
func (i Instance) Ready() bool { return len(i.Present) == i.Ranks }

// Usable reports whether new rooms may go there: ready, at work and staying.
func (i Instance) Usable() bool { return i.Ready() && !i.Draining && i.Unhealthy == "" }

type instanceFields Instance

type instanceJSON struct {
	instanceFields
	Side string `json:"side"`
}

// MarshalJSON writes an object.
func (i Instance) MarshalJSON() ([]byte, error) {
	if i.Ready() {
		i.Present = nil // all
	}
	return json.Marshal(instanceJSON{instanceFields(i), i.Side.String()})
}

// UnmarshalJSON reads an object; unknown fields are ignored, so that releases can be mixed. It does not validate.
func (i *Instance) UnmarshalJSON(b []byte) error {
	var v instanceJSON
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*i = Instance(v.instanceFields)
	i.Side, _ = room.ParseSide(v.Side)
	return nil
}

// normal is the instance with its defaults filled in, or an ErrInvalid that names the field.
func (i Instance) normal() (Instance, error) {
	bad := func(field string, v any, want string) (Instance, error) {
		return Instance{}, fmt.Errorf("%w: instance: field %q is %.80v, want %s", ErrInvalid, field, v, want)
	}
	u, err := url.Parse(i.URL)
	switch {
	case i.ID.IsZero():
		return bad("id", i.ID, "32 hexadecimal digits that are not all 0")
	case i.Side != room.Prefill && i.Side != room.Decode:
		return bad("side", i.Side, "prefill or decode")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || len(i.URL) > maxText:
		return bad("url", i.URL, "http://host:port without user, query and fragment")
	case i.URL[len(i.URL)-1] == '/':
		return bad("url", i.URL, "no slash at its end")
	case i.Bootstrap != "" && !ValidAddr(i.Bootstrap):
		return bad("bootstrap", i.Bootstrap, "host:port")
	case len(i.Model) > maxText:
		return bad("model", i.Model, fmt.Sprintf("at most %d bytes", maxText))
	case len(i.Unhealthy) > maxText:
		return bad("unhealthy", i.Unhealthy, fmt.Sprintf("at most %d bytes", maxText))
	case i.Ranks < 0 || i.Ranks > maxRanks:
		return bad("ranks", i.Ranks, fmt.Sprintf("1 to %d", maxRanks))
	case min(i.Context, i.PageSize, i.TP, i.PP, i.Load.FreePages, i.Load.TotalPages, i.Load.Running, i.Load.Waiting) < 0:
		return bad("context, page_size, tp, pp or load", i, "no negative number")
	}
	i.Ranks = max(i.Ranks, 1)
	if len(i.Present) == 0 {
		i.Present = make([]int, i.Ranks)
		for r := range i.Present {
			i.Present[r] = r
		}
		return i, nil
	}
	for k, r := range i.Present {
		if r < 0 || r >= i.Ranks || k > 0 && r <= i.Present[k-1] {
			return bad("present", i.Present, fmt.Sprintf("ranks from 0 to %d, ascending", i.Ranks-1))
		}
	}
	i.Present = slices.Clone(i.Present)
	return i, nil
}

// ParseInstance reads a registration. Errors are ErrInvalid.
func ParseInstance(b []byte) (Instance, error) {
	var i Instance
	if err := json.Unmarshal(b, &i); err != nil {
		return Instance{}, fmt.Errorf("%w: instance: %w", ErrInvalid, err)
	}
	return i.normal()
}

// Lease is a registry's answer to a registration.
type Lease struct {
	Registry room.InstanceID `json:"registry"` // this life of the registry
	Revision uint64          `json:"revision"`
	TTL      time.Duration   `json:"ttl_ns"` // the registration ends then unless it is repeated
}

// Snapshot is all that a registry knows at one revision. Watchers share Instances and must not change it.
type Snapshot struct {
	Registry  room.InstanceID `json:"registry"` // this life of the registry; revisions of another one can't be compared
	Revision  uint64          `json:"revision"`
	Settled   bool            `json:"settled"`   // the registry has lived for a lease's time, so that whoever is alive has registered
	Instances []Instance      `json:"instances"` // by side, then URL
}

// ParseSnapshot reads a snapshot, of which every instance must be valid. Errors are ErrInvalid.
func ParseSnapshot(b []byte) (Snapshot, error) {
	var s Snapshot
	if err := json.Unmarshal(b, &s); err != nil {
		return Snapshot{}, fmt.Errorf("%w: snapshot: %w", ErrInvalid, err)
	}
	if s.Registry.IsZero() || len(s.Instances) > maxInstances {
		return Snapshot{}, fmt.Errorf("%w: snapshot of registry %s with %d instances, limit %d", ErrInvalid, s.Registry, len(s.Instances), maxInstances)
	}
	for k, i := range s.Instances {
		n, err := i.normal()
		if err != nil {
			return Snapshot{}, fmt.Errorf("snapshot: %w", err)
		}
		s.Instances[k] = n
	}
	return s, nil
}
