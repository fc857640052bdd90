package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// benchRole makes this binary the other process of a benchmark; benchBack is the endpoint of the first one.
const (
	benchRole = "KVFERRY_ZMTP_BENCH_ROLE"
	benchBack = "KVFERRY_ZMTP_BENCH_BACK"
)

// benchPeer is the other process: "echo" sends every message back, "sink N" receives N and prints messages per second.
func benchPeer(role string) error {
	ctx := context.Background()
	in, err := Listen(ctx, "127.0.0.1:0", Config{})
	if err != nil {
		return err
	}
	fmt.Println(in.Endpoint())
	if count, ok := strings.CutPrefix(role, "sink "); ok {
		n, err := strconv.Atoi(count)
		if err != nil {
			return err
		}
		if _, err := in.Recv(ctx); err != nil {
			return err
		}
		start := time.Now()
		into := make([]Message, 128)
		for left := n - 1; left > 0; {
			got, err := in.RecvMany(ctx, into[:min(left, len(into))])
			if err != nil {
				return err
			}
			left -= got
		}
		fmt.Println(float64(n-1) / time.Since(start).Seconds())
		return nil
	}
	out, err := Dial(os.Getenv(benchBack), Config{})
	if err != nil {
		return err
	}
	for {
		m, err := in.Recv(ctx)
		if err != nil || len(m.Frames[0]) == 0 {
			return err
		}
		if err := out.Send(ctx, m.Frames...); err != nil {
			return err
		}
	}
}

// benchProcess starts the other process, and returns its endpoint and what it prints at its end.
func benchProcess(b *testing.B, role, back string) (endpoint string, end func() string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchRole+"="+role, benchBack+"="+back)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	endpoint = lines.Text()
	return endpoint, func() string {
		lines.Scan()
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
		return lines.Text()
	}
}

func median(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }

// pyzmqFigure runs testdata/bench.py.
func pyzmqFigure(b *testing.B, args ...string) float64 {
	cmd := exec.Command(python(b), append([]string{"testdata/bench.py"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.Fatal(err)
	}
	f, err := strconv.ParseFloat(string(bytes.TrimSpace(out)), 64)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// rounds are run by turns, ours and pyzmq's, so that both see the same machine; medians of them are reported.
const rounds = 5

// BenchmarkRoundTrip: 64 bytes there and back, two processes, two PUSH/PULL pairs. Each round's figure is a median.
func BenchmarkRoundTrip(b *testing.B) {
	python(b)
	const trips = 4000
	for b.Loop() {
		var ours, theirs []float64
		for range rounds {
			ours = append(ours, roundTrip(b, trips))
			theirs = append(theirs, pyzmqFigure(b, "rtt", strconv.Itoa(trips)))
		}
		b.ReportMetric(median(ours)/1e3, "µs/trip")
		b.ReportMetric(median(theirs)/1e3, "pyzmq-µs/trip")
		b.ReportMetric(median(ours)/median(theirs), "of-pyzmq's")
	}
}

func roundTrip(b *testing.B, trips int) float64 {
	ctx := context.Background()
	in := listen(b, Config{})
	there, end := benchProcess(b, "echo", in.Endpoint())
	out := dial(b, there, Config{})
	m := make([]byte, 64)
	var times []float64
	for range trips + trips/10 {
		start := time.Now()
		if err := out.Send(ctx, m); err != nil {
			b.Fatal(err)
		}
		if _, err := in.Recv(ctx); err != nil {
			b.Fatal(err)
		}
		times = append(times, float64(time.Since(start)))
	}
	if err := out.Send(ctx, nil); err != nil {
		b.Fatal(err)
	}
	end()
	return median(times[trips/10:]) // the first tenth warms up
}

// BenchmarkThroughput: messages of 64 bytes from one process to another, by one sender and by four that contend.
func BenchmarkThroughput(b *testing.B) {
	python(b)
	for _, senders := range []int{1, 4} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			for b.Loop() {
				var ours, theirs []float64
				for range rounds {
					ours = append(ours, throughput(b, senders, 2_000_000))
					theirs = append(theirs, pyzmqFigure(b, "throughput", "500000", "64"))
				}
				b.ReportMetric(median(ours), "msgs/s")
				b.ReportMetric(median(theirs), "pyzmq-msgs/s")
				b.ReportMetric(median(ours)/median(theirs), "x-pyzmq's")
			}
		})
	}
}

func throughput(b *testing.B, senders, n int) float64 {
	endpoint, end := benchProcess(b, fmt.Sprintf("sink %d", n), "")
	out := dial(b, endpoint, Config{})
	for range senders {
		go func() {
			m := make([]byte, 64)
			for range n / senders {
				if err := out.Send(context.Background(), m); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	f, err := strconv.ParseFloat(end(), 64)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// BenchmarkSend is the cost of one message on both sides, in one process.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{64, 1 << 20} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			pull := listen(b, Config{})
			push := dial(b, pull.Endpoint(), Config{})
			m := [][]byte{make([]byte, size), make([]byte, 8)}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			ctx := context.Background()
			b.ResetTimer()
			go func() {
				for range b.N {
					if err := push.Send(ctx, m...); err != nil {
						b.Error(err)
						return
					}
				}
			}()
			for range b.N {
				if _, err := pull.Recv(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
