package goredis_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/redlock-go/redlock/dlock/cli"
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
