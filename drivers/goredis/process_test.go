//go:build unix

package goredis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/cli"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/nodetest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// asWorker in the environment makes this test binary a worker, "count", or the program dlock.
const asWorker = "GOREDIS_TEST_WORKER"

func TestMain(m *testing.M) {
	switch os.Getenv(asWorker) {
	case "":
		os.Exit(nodetest.Main(m))
	case "dlock":
		os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	default:
		if err := worker(os.Getenv("GOREDIS_TEST_URL"), os.Getenv("GOREDIS_TEST_ARG")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func worker(url, arg string) error {
	c, err := dlock.OpenURL(url)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return count(c, arg)
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

// Forty processes, or five with -short, count together, fifty each.
func TestProcessesCountTogetherWithRisingTokens(t *testing.T) {
	t.Parallel()
	processes := 40
	if testing.Short() {
		processes = 5
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
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), asWorker+"=count", "GOREDIS_TEST_URL=redis://"+s.Addr()+"?call_timeout=20s&ttl=1m", "GOREDIS_TEST_ARG="+file)
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("worker: %v: %s", err, out)
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

func TestStoppedHolderFindsItsLeaseLostAndItsCommandKilled(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	cmd := exec.Command(os.Args[0], "run", "--ttl", "4s", "held", "--", "sh", "-c", "echo $DLOCK_FENCE; echo $$; exec sleep 1000")
	cmd.Env = append(os.Environ(), asWorker+"=dlock", "DLOCK_URL=redis://"+s.Addr()+"?call_timeout=10s")
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
