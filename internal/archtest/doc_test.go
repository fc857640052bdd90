// Package archtest checks what no compiler checks: who may import whom, which packages are pure, one package comment each, no cgo,
// settings read in one place, no trace of a particular machine in the tree. It has tests only, starts no goroutine, and asks the go command
// and git for what it looks at. A rule for a package that does not exist is logged as such and applies when the package appears.
package archtest
