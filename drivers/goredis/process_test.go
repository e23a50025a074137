package goredis_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/dlock/cli"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// asWorker in the environment makes this test binary the program dlock.
const asWorker = "GOREDIS_TEST_DLOCK"

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	redis.SetLogger(&library)
	os.Exit(m.Run())
}

// library has the lines of go-redis' logger, which all clients of a process share.
var library lines

type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Printf(_ context.Context, format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf(format, v...))
}

// Close ends the subscription before the connections: else the library takes it for broken, and says so on stderr.
func TestCloseOfABackendThatWaitsIsSilent(t *testing.T) {
	t.Parallel()
	srv := server.Redis(t)
	for i := range 20 {
		b, err := goredis.Driver{}.Open(&driver.Config{DSN: srv.URL()})
		drivertest.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		_, err = b.(driver.Watcher).Watch(ctx, "k")
		drivertest.Must(t, err)
		if i%2 == 0 {
			cancel() // the last waiter leaves
		}
		drivertest.Must(t, b.Close())
		cancel()
	}
	library.mu.Lock()
	defer library.mu.Unlock()
	for _, line := range library.all {
		if strings.Contains(line, srv.Addr()) {
			t.Errorf("go-redis logs %q", line)
		}
	}
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
