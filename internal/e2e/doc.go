// Package e2e holds tests alone: they build kvferry and drive real processes by command lines, HTTP and signals.
package e2e
