package room

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// ID is the number of a room (SGLang: bootstrap_room): an exact integer in [0, 2^63). On every wire and in JSON it is decimal text or a
// JSON integer; it never passes through a float.
type ID uint64

// MaxID is the largest room number: the wire's readers keep it in a signed 64-bit integer.
const MaxID ID = 1<<63 - 1

// maxIDDigits is the length of MaxID in decimal.
const maxIDDigits = 19

// ErrInvalidID reports text that is no room number.
var ErrInvalidID = errors.New("invalid room number")

// ParseID reads a room number: 1 to 19 ASCII digits, value at most MaxID. Signs, spaces, underscores, fractions and exponents are refused;
// leading zeros are not, since they change nothing of the value.
func ParseID[T ~string | ~[]byte](text T) (ID, error) {
	if len(text) == 0 || len(text) > maxIDDigits {
		return 0, fmt.Errorf("%w: %d characters, want 1 to %d digits", ErrInvalidID, len(text), maxIDDigits)
	}
	var n uint64
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%w: %q, want digits only", ErrInvalidID, string(text))
		}
		n = n*10 + uint64(c-'0') // 19 digits stay below 2^64
	}
	if n > uint64(MaxID) {
		return 0, fmt.Errorf("%w: %s, want at most %d", ErrInvalidID, string(text), uint64(MaxID))
	}
	return ID(n), nil
}

func (id ID) String() string { return strconv.FormatUint(uint64(id), 10) }

// Append appends the decimal text of id.
func (id ID) Append(b []byte) []byte { return strconv.AppendUint(b, uint64(id), 10) }

// MarshalJSON writes a JSON integer.
func (id ID) MarshalJSON() ([]byte, error) { return id.Append(nil), nil }

// UnmarshalJSON reads a JSON integer; a string, a fraction or an exponent is refused.
func (id *ID) UnmarshalJSON(b []byte) error {
	n, err := ParseID(b)
	if err != nil {
		return err
	}
	*id = n
	return nil
}

// Epoch is one life of a room on the decode side: a random 64-bit token. Zero means that the peer told none.
type Epoch uint64

// InstanceID is the random token of one process incarnation. The zero value means that the peer told none.
type InstanceID [16]byte

// ErrInvalidInstance reports text that is no instance id.
var ErrInvalidInstance = errors.New("invalid instance id")

// ParseInstanceID reads 32 hexadecimal digits.
func ParseInstanceID(text string) (InstanceID, error) {
	var id InstanceID
	if len(text) != 2*len(id) {
		return id, fmt.Errorf("%w: %d characters, want %d hexadecimal digits", ErrInvalidInstance, len(text), 2*len(id))
	}
	if _, err := hex.Decode(id[:], []byte(text)); err != nil {
		return InstanceID{}, fmt.Errorf("%w: %w", ErrInvalidInstance, err)
	}
	return id, nil
}

func (id InstanceID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is unset.
func (id InstanceID) IsZero() bool { return id == InstanceID{} }

// MarshalText writes 32 hexadecimal digits.
func (id InstanceID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads 32 hexadecimal digits.
func (id *InstanceID) UnmarshalText(b []byte) error {
	v, err := ParseInstanceID(string(b))
	if err == nil {
		*id = v
	}
	return err
}

var _ json.Unmarshaler = (*ID)(nil)
