// Load sends inference requests and prints what it measured as JSON.
//
//	load -url http://127.0.0.1:30000 -api chat -conns 32 -duration 5s -size 200
//	load -url http://127.0.0.1:30000 -api chat -conns 32 -count 1000 -rate 200 -stream -tokens 32
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/load"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("load: ")
	cfg := load.Config{Header: http.Header{}}
	url := flag.String("url", "http://127.0.0.1:30000", "address of the gateway or worker")
	api := flag.String("api", "chat", "chat, completions or generate")
	size := flag.Int("size", 200, "bytes of the prompt")
	prompts := flag.Int("prompts", 64, "number of different prompts")
	flag.IntVar(&cfg.Conns, "conns", 1, "connections")
	flag.DurationVar(&cfg.Duration, "duration", 5*time.Second, "length of the run; 0: until -count")
	flag.IntVar(&cfg.Count, "count", 0, "number of requests; 0: until -duration")
	flag.Float64Var(&cfg.Rate, "rate", 0, "requests per second; 0: closed loop")
	flag.DurationVar(&cfg.Timeout, "timeout", 30*time.Second, "limit of one request")
	flag.BoolVar(&cfg.Stream, "stream", false, "ask for an event stream")
	flag.IntVar(&cfg.Tokens, "tokens", 1, "tokens asked for; in a stream also the number expected")
	flag.Func("header", "`Name: value` added to each request; may be repeated", func(s string) error {
		name, value, _ := strings.Cut(s, ":")
		cfg.Header.Add(name, strings.TrimSpace(value))
		return nil
	})
	flag.Parse()
	path, ok := load.Paths[*api]
	if !ok {
		log.Fatalf("unknown api %q", *api)
	}
	cfg.URL = *url + path
	for n := range *prompts {
		cfg.Bodies = append(cfg.Bodies, load.Body(*api, *size, cfg.Stream, cfg.Tokens, n))
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	report, err := load.Run(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	_ = out.Encode(report)
}
