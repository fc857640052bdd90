// Behave puts each gateway through the behaviour table and prints it.
//
//	go build -o bin/ ./cmd/... && bin/behave -out result.json peers/*.json
//	bin/behave -run 'prefill-503$' peers/sglang-router.json
//
// Progress goes to standard error, the table to standard output as Markdown.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/behave"
	"github.com/kvferry/kvferry/bench/gateway/gateway"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("behave: ")
	out := flag.String("out", "", "file for the rows as JSON")
	run := flag.String("run", "", "regular expression of the cases to run")
	list := flag.Bool("list", false, "only list the cases")
	logFile := flag.String("log", "", "file for the gateways' output; discarded by default")
	limits := behave.Limits{Settle: 3 * time.Second}
	flag.DurationVar(&limits.Told, "told", 20*time.Millisecond, "limit from a leg's failure to the client's answer")
	flag.DurationVar(&limits.Cancel, "cancel", 20*time.Millisecond, "limit from a failure to the end of the other leg")
	flag.DurationVar(&limits.Answer, "answer", 12*time.Second, "how long a client waits")
	flag.Parse()

	filter, err := regexp.Compile(*run)
	if err != nil {
		log.Fatal(err)
	}
	if *list {
		for _, c := range behave.Cases() {
			fmt.Printf("%-42s %s\n", c.Name, c.Want)
		}
		return
	}
	var output io.Writer
	if *logFile != "" {
		f, err := os.Create(*logFile)
		if err != nil {
			log.Fatal(err)
		}
		defer func() { _ = f.Close() }() // read to the end
		output = f
	}
	var defs []gateway.Definition
	for _, path := range flag.Args() {
		def, err := gateway.ReadDefinition(path)
		if err != nil {
			log.Fatal(err)
		}
		defs = append(defs, def)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	rows := []behave.Row{}
	failed := false
	for _, def := range defs {
		for _, c := range behave.Cases() {
			if !filter.MatchString(c.Name) || ctx.Err() != nil {
				continue
			}
			if output != nil {
				fmt.Fprintf(output, "=== %s\n", c.Name)
			}
			row, err := behave.Run(ctx, def, c, limits, output)
			if err != nil {
				log.Printf("%s, %s: %v", def.Name, c.Name, err)
				failed = true
				continue
			}
			log.Printf("%-26s %-42s %-5s %s; told %s, cancel %s, legs %d/%d; %s", def.Name, row.Case, row.Verdict, row.Got,
				milliseconds(row.ToldMS), milliseconds(row.CancelMS), row.Prefill, row.Decode, strings.Join(row.Notes, "; "))
			rows = append(rows, row)
		}
	}
	if *out != "" {
		b, _ := json.MarshalIndent(rows, "", " ")
		if err := os.WriteFile(*out, append(b, '\n'), 0o666); err != nil {
			log.Fatal(err)
		}
	}
	printTable(os.Stdout, rows)
	if failed {
		os.Exit(1)
	}
}

func printTable(w io.Writer, rows []behave.Row) {
	fmt.Fprint(w, "| gateway | case | want | verdict | got | client ms | told ms | cancel ms | P legs | D legs | notes |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		notes := strings.NewReplacer("|", "\\|", "\n", " ").Replace(strings.Join(r.Notes, "; "))
		if len(notes) > 240 {
			notes = notes[:240] + "…"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %.1f | %s | %s | %d | %d | %s |\n", r.Gateway, r.Case, r.Want, r.Verdict, r.Got, r.ClientMS,
			milliseconds(r.ToldMS), milliseconds(r.CancelMS), r.Prefill, r.Decode, notes)
	}
}

func milliseconds(v *float64) string {
	switch {
	case v == nil:
		return "–"
	case *v < 0:
		return "never"
	default:
		return fmt.Sprintf("%.1f", *v)
	}
}
