package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// asCommand in the environment makes this test binary the command.
const asCommand = "DLOCK_TEST_AS_DLOCK"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// dlock runs the command with only this environment, as cron does.
func dlock(t *testing.T, env []string, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	var out, errs strings.Builder
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = t.TempDir(), append(env, asCommand+"=1"), &out, &errs
	_ = cmd.Run() // the streams tell
	if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v in the folder", left, err)
	}
	return out.String(), errs.String()
}

// What cron mails about an unreachable server is one line of dlock's, and none of a client library.
func TestCronsMailHasOneLineOfDlocks(t *testing.T) {
	for _, url := range []string{
		"redis://127.0.0.1:1", "redis://127.0.0.1:1,127.0.0.1:2/0?topology=sentinel&master=m", "valkey://127.0.0.1:1",
		"redlock:redis://127.0.0.1:1,redis://127.0.0.1:2,valkey://127.0.0.1:3", "postgres://127.0.0.1:1/db",
	} {
		stdout, stderr := dlock(t, []string{"DLOCK_URL=" + url}, "run", "--skip", "nightly", "--", "true")
		if stdout != "" || !strings.HasPrefix(stderr, "dlock: trylock") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: stdout %q, stderr %q", url, stdout, stderr)
		}
	}
}

// Without arguments, in an empty folder and an empty environment, dlock says what it is.
func TestWithoutArgumentsItSaysWhatItIs(t *testing.T) {
	stdout, stderr := dlock(t, nil)
	if !strings.Contains(stdout, `dlock run nightly -- echo "one at a time"`) || stderr != "" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
}
