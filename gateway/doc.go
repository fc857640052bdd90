// Package gateway turns one request into two legs, one on a prefill and one on a decode worker, and gives it one verdict.
//
// Both legs get the client's body with three members set in place, bootstrap_host, bootstrap_port and bootstrap_room, and not a byte else is
// changed. Each attempt has a fresh 63-bit room. The decode leg's answer goes to the client as it comes; the first leg that fails cancels the
// other, and the client gets that leg's status and cause. A client that leaves cancels both. An attempt that failed before the first byte
// left may be tried again on another pair.
//
// Each request has the goroutine of its HTTP handler and one per leg; all of them end with the request.
package gateway
