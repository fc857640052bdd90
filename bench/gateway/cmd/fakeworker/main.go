// Fakeworker serves fake prefill and decode workers until it is interrupted.
//
//	fakeworker -prefill 2 -decode 2 -port 31000 -control 127.0.0.1:30999 -record
//
// The control API is described at fakeworker.Pool.Control. Once it
// answers, the list of workers goes to standard output as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/fakeworker"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("fakeworker: ")
	var cfg fakeworker.Config
	flag.IntVar(&cfg.Prefill, "prefill", 1, "prefill workers")
	flag.IntVar(&cfg.Decode, "decode", 1, "decode workers")
	flag.IntVar(&cfg.Plain, "plain", 0, "workers that are not disaggregated")
	flag.StringVar(&cfg.Host, "host", "127.0.0.1", "address to listen on")
	flag.IntVar(&cfg.Port, "port", 31000, "port of the first worker, the next ones follow; 0: any free ones")
	flag.IntVar(&cfg.BootstrapPort, "bootstrap-port", 8998, "bootstrap port told for the first prefill worker")
	flag.StringVar(&cfg.Model, "model", "fake", "served model name")
	flag.BoolVar(&cfg.Record, "record", false, "keep a record of every request")
	flag.IntVar(&cfg.KeepBody, "keep-body", 64<<10, "longest body kept in a record")
	flag.IntVar(&cfg.Timing.Tokens, "tokens", 1, "tokens of one answer")
	flag.DurationVar((*time.Duration)(&cfg.Timing.Prefill), "prefill-delay", 0, "time of one prefill")
	flag.DurationVar((*time.Duration)(&cfg.Timing.Token), "token-delay", 0, "time between two tokens")
	control := flag.String("control", "127.0.0.1:30999", "address of the control API")
	flag.Parse()

	pool, err := fakeworker.Start(cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ln, err := net.Listen("tcp", *control)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(pool.Info()); err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: pool.Control()}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}
