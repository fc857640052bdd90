// Command kvferry runs gateways, prefill and decode workers, and a whole cluster on one machine with `kvferry up`.
package main

import (
	"os"

	"github.com/kvferry/kvferry/internal/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:])) }
