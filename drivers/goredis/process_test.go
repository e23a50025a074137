//go:build unix

package goredis_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/cli"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/nodetest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// asWorker in the environment makes this test binary a worker: "count", "hold" or
// "contend"; or the program dlock.
const asWorker = "GOREDIS_TEST_WORKER"

func TestMain(m *testing.M) {
	switch work := os.Getenv(asWorker); work {
	case "":
		os.Exit(nodetest.Main(m))
	case "dlock":
		os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	default:
		if err := worker(work, os.Getenv("GOREDIS_TEST_URL"), os.Getenv("GOREDIS_TEST_ARG")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func worker(work, url, arg string) error {
	c, err := dlock.OpenURL(url)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	switch work {
	case "count":
		return count(c, arg)
	case "hold":
		return hold(c)
	case "contend":
		return contend(c, arg)
	}
	return fmt.Errorf("unknown work %q", work)
}

// count adds one to the number in file, 50 times, each under the lock, and notes the
// tokens behind it.
func count(c *dlock.Client, file string) error {
	for range 50 {
		err := dlock.Do(context.Background(), c, "counter", func(ctx context.Context) error {
			l, _ := dlock.LeaseFor(ctx, "counter")
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(string(b))
			if err != nil {
				return err
			}
			if err := os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600); err != nil {
				return err
			}
			log, err := os.OpenFile(file+".tokens", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(log, l.Fence())
			return errors.Join(err, log.Close())
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hold takes the lock, prints its token, and holds it until it is killed.
func hold(c *dlock.Client) error {
	l, err := c.Lock(context.Background(), "held", dlock.WithTTL(2*time.Second))
	if err != nil {
		return err
	}
	fmt.Println(l.Fence())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// A turn is one time that a worker had the lock, by the machine's clock.
type turn struct{ Got, Gave time.Time }

// contend takes and releases one lock for a while, and prints its turns.
func contend(c *dlock.Client, arg string) error {
	for_, hold, _ := strings.Cut(arg, ",")
	d, err := time.ParseDuration(for_)
	if err != nil {
		return err
	}
	work, err := time.ParseDuration(hold)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	turns := []turn{}
	for end := time.Now().Add(d); time.Now().Before(end); {
		l, err := c.Lock(context.Background(), "contended")
		if err != nil {
			return err
		}
		t := turn{Got: time.Now()}
		if work > 0 {
			<-time.After(work)
		}
		t.Gave = time.Now()
		if err := l.Unlock(); err != nil {
			return err
		}
		turns = append(turns, t)
	}
	return json.NewEncoder(os.Stdout).Encode(turns)
}

func startWorker(t testing.TB, work, url, arg string) (*exec.Cmd, io.WriteCloser, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asWorker+"="+work, "GOREDIS_TEST_URL="+url, "GOREDIS_TEST_ARG="+arg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, in, bufio.NewReader(out)
}

// Forty processes, or ten with -short, count together, fifty each.
func TestProcessesCountTogetherWithRisingTokens(t *testing.T) {
	t.Parallel()
	processes := 40
	if testing.Short() {
		processes = 10
	}
	want := 50 * processes
	s := server.Redis(t)
	file := filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range processes {
		// Many processes on a few processors, each of which must have its answer in time.
		cmd, _, _ := startWorker(t, "count", "redis://"+s.Addr()+"?call_timeout=20s&ttl=1m", file)
		wg.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("worker: %v", err)
			}
		})
	}
	wg.Wait()
	if b, err := os.ReadFile(file); err != nil || string(b) != strconv.Itoa(want) {
		t.Errorf("the counter ends at %s, %v", b, err)
	}
	b, err := os.ReadFile(file + ".tokens")
	if err != nil {
		t.Fatal(err)
	}
	last, n := uint64(0), 0
	for line := range strings.Lines(string(b)) {
		token, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if token <= last {
			t.Errorf("token %d follows %d", token, last)
		}
		last = token
		n++
	}
	if n != want {
		t.Errorf("%d tokens", n)
	}
}

func TestKilledHolderIsFollowedAfterTTLAndGrace(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	cmd, _, out := startWorker(t, "hold", "redis://"+s.Addr(), "")
	first := readToken(t, out)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	killed := time.Now()
	left, err := s.Do("PTTL", "held")
	if err != nil {
		t.Fatal(err)
	}
	c := openClient(t, s)
	l, err := c.Lock(context.Background(), "held")
	if err != nil {
		t.Fatal(err)
	}
	if waited, least := time.Since(killed), time.Duration(left.(int64))*time.Millisecond; waited < least || waited > time.Minute {
		t.Errorf("the next holder came after %v, and the lock had %v left", waited, least)
	}
	if l.Fence() <= first {
		t.Errorf("token %d follows %d", l.Fence(), first)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestStoppedHolderFindsItsLeaseLostAndItsCommandKilled(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	cmd := exec.Command(os.Args[0], "run", "--ttl", "4s", "held", "--", "sh", "-c", "echo $DLOCK_FENCE; echo $$; exec sleep 1000")
	cmd.Env = append(os.Environ(), asWorker+"=dlock", "DLOCK_URL=redis://"+s.Addr())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	first, command := readToken(t, lines), int(readToken(t, lines))
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c := openClient(t, s)
	l, err := c.Lock(context.Background(), "held")
	if err != nil {
		t.Fatal(err)
	}
	if l.Fence() <= first {
		t.Errorf("token %d follows %d", l.Fence(), first)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 76 {
		t.Errorf("the old holder, resumed, ends with %v, want exit code 76", err)
	}
	if err := syscall.Kill(command, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("its command lives on: %v", err)
	}
	if err := l.Unlock(); err != nil {
		t.Errorf("the old holder disturbed the new one: %v", err)
	}
}

func readToken(t testing.TB, r *bufio.Reader) uint64 {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func openClient(t testing.TB, s *server.Server) *dlock.Client {
	t.Helper()
	b, err := goredis.Driver{}.Open(&driver.Config{DSN: "redis://" + s.Addr() + "?call_timeout=10s"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := dlock.New(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The time from a release in one process to the grant in another that waits, the rate,
// and who got how many turns.
func BenchmarkHandoff(b *testing.B) {
	for _, c := range []struct {
		processes int
		arg       string
	}{{2, "2s,2ms"}, {8, "2s,2ms"}, {32, "10s,0s"}} {
		b.Run(fmt.Sprintf("processes=%d", c.processes), func(b *testing.B) {
			for b.Loop() {
				contest(b, c.processes, c.arg)
			}
		})
	}
}

func contest(b *testing.B, processes int, arg string) {
	s := server.Redis(b)
	var start []io.WriteCloser
	var outs []*bufio.Reader
	for range processes {
		_, in, out := startWorker(b, "contend", "redis://"+s.Addr(), arg)
		if line, err := out.ReadString('\n'); err != nil || line != "ready\n" {
			b.Fatalf("worker: %q, %v", line, err)
		}
		start, outs = append(start, in), append(outs, out)
	}
	for _, in := range start {
		fmt.Fprintln(in)
	}
	type owned struct {
		turn
		who int
	}
	var all []owned
	least, most := 1<<30, 0
	for who, out := range outs {
		var turns []turn
		if err := json.NewDecoder(out).Decode(&turns); err != nil {
			b.Fatal(err)
		}
		least, most = min(least, len(turns)), max(most, len(turns))
		for _, t := range turns {
			all = append(all, owned{t, who})
		}
	}
	slices.SortFunc(all, func(x, y owned) int { return x.Got.Compare(y.Got) })
	var gaps []time.Duration
	for i := 1; i < len(all); i++ {
		if all[i].Got.Before(all[i-1].Gave) {
			b.Errorf("two processes had the lock at once")
		}
		if all[i].who != all[i-1].who {
			gaps = append(gaps, all[i].Got.Sub(all[i-1].Gave))
		}
	}
	if len(gaps) == 0 {
		b.Fatal("the lock was never handed over")
	}
	slices.Sort(gaps)
	span := all[len(all)-1].Gave.Sub(all[0].Got).Seconds()
	b.ReportMetric(float64(gaps[len(gaps)/2].Microseconds()), "µs-handoff-p50")
	b.ReportMetric(float64(gaps[len(gaps)*99/100].Microseconds()), "µs-handoff-p99")
	b.ReportMetric(float64(len(all))/span, "locks/s")
	b.ReportMetric(float64(least), "turns-min")
	b.ReportMetric(float64(most), "turns-max")
}
