//go:build unix

package goredis_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/cli"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// asWorker in the environment makes this test binary the program dlock.
const asWorker = "GOREDIS_TEST_DLOCK"

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// The names of scripts, which are SHA-1 sums, are no cryptography: a process that may use only
// approved algorithms can lock.
func TestAProcessThatMayUseOnlyFIPSLocks(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "run", "k", "--", "true")
	cmd.Env = append(os.Environ(), asWorker+"=1", "GODEBUG=fips140=only", "DLOCK_URL=redis://"+server.Redis(t).Addr()+"?call_timeout=10s")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestStoppedHolderFindsItsLeaseLostAndItsCommandKilled(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	cmd := exec.Command(os.Args[0], "run", "--ttl", "4s", "held", "--", "sh", "-c", "echo $DLOCK_FENCE; echo $$; exec sleep 1000")
	cmd.Env = append(os.Environ(), asWorker+"=1", "DLOCK_URL=redis://"+s.Addr()+"?call_timeout=10s")
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
