package room

import "strconv"

// Status is the state of a room on one side. The non-negative values are the wire's (SGLang's KVPoll).
type Status int8

const (
	Absent          Status = -1 // no such room; never on a wire
	Failed          Status = 0
	Bootstrapping   Status = 1
	WaitingForInput Status = 2
	Transferring    Status = 3
	Success         Status = 4
)

// Valid reports whether s may stand on a wire.
func (s Status) Valid() bool { return s >= Failed && s <= Success }

// Terminal reports whether s is a verdict.
func (s Status) Terminal() bool { return s == Failed || s == Success }

func (s Status) String() string {
	switch s {
	case Absent:
		return "Absent"
	case Failed:
		return "Failed"
	case Bootstrapping:
		return "Bootstrapping"
	case WaitingForInput:
		return "WaitingForInput"
	case Transferring:
		return "Transferring"
	case Success:
		return "Success"
	}
	return "Status(" + strconv.Itoa(int(s)) + ")"
}

// Next is the status of a room after a report: Failed wins and stays, else the larger value.
// An absent room is created by Bootstrapping and WaitingForInput alone; any other report leaves it absent.
// A reported value that is not Valid changes nothing.
func Next(cur, reported Status) Status {
	switch {
	case !reported.Valid():
		return cur
	case cur == Absent:
		if reported == Bootstrapping || reported == WaitingForInput {
			return reported
		}
		return Absent
	case cur == Failed || reported == Failed:
		return Failed
	}
	return max(cur, reported)
}
