//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// inside runs the command in this process, with more environment, of which "NAME" alone
// is taken out. It runs no other process but the guard and the command.
func inside(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	for _, e := range env {
		name, value, set := strings.Cut(e, "=")
		if old, was := os.LookupEnv(name); was {
			defer os.Setenv(name, old) //nolint:errcheck // the name is good
		} else {
			defer os.Unsetenv(name) //nolint:errcheck // the name is good
		}
		if _ = os.Setenv(name, value); !set {
			_ = os.Unsetenv(name)
		}
	}
	var out, errs bytes.Buffer
	code = Main(append([]string{"dlock"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// wantInside runs the command and checks its exit code, and that stderr has what is wanted.
func wantInside(t *testing.T, env []string, code int, says string, args ...string) {
	t.Helper()
	got, _, stderr := inside(t, env, args...)
	if got != code || !strings.Contains(stderr, says) || says == "" && stderr != "" {
		t.Errorf("%q dlock %q: exit code %d, want %d; stderr is %q, want %q in it", env, args, got, code, stderr, says)
	}
	if n := strings.Count(stderr, "\n"); n > 1 {
		t.Errorf("dlock %q: %d lines on stderr, want at most one: %s", args, n, stderr)
	}
}

func TestTheCommandGetsTheLeaseAndNeverTheURL(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	// The variables that an outer dlock run has set are replaced.
	w.env = append(w.env, "DLOCK_DEADLINE=2001-01-01T00:00:00Z", "DLOCK_KEY=outer", "DLOCK_KEYS=a%20b+c outer", "DLOCK_FENCE=1", envURLFile+"=/nowhere", "KEPT=yes")
	env := func(args ...string) map[string]string {
		out, _ := w.want(0, append(args, "--", "env")...)
		m := map[string]string{}
		for _, line := range strings.Split(out, "\n") {
			name, value, _ := strings.Cut(line, "=")
			m[name] = value
		}
		return m
	}
	on := env("run", "--url", "file://"+w.dir+"/locks", "some key")
	if on["DLOCK_KEY"] != "some key" || on["DLOCK_KEYS"] != "a+b+c outer some+key" || on["KEPT"] != "yes" {
		t.Errorf("the key is %q, the keys are %q, KEPT is %q", on["DLOCK_KEY"], on["DLOCK_KEYS"], on["KEPT"])
	}
	if n, err := strconv.ParseUint(on["DLOCK_FENCE"], 10, 64); err != nil || n < 1e15 {
		t.Errorf("the token is %q", on["DLOCK_FENCE"])
	}
	if d, ok := on["DLOCK_DEADLINE"]; ok {
		t.Errorf("a lock without TTL has the deadline %q", d)
	}
	start := time.Now()
	timed := env("run", "--ttl", "100s", "k")
	d, err := time.Parse(time.RFC3339Nano, timed["DLOCK_DEADLINE"])
	if left := d.Sub(start); err != nil || left < 90*time.Second || left > 100*time.Second+time.Since(start) {
		t.Errorf("the deadline is %q, %v from the start, want 99 s or so", timed["DLOCK_DEADLINE"], left)
	}
	for _, m := range []map[string]string{on, timed} {
		for _, name := range []string{envURL, envURLFile} {
			if v, ok := m[name]; ok {
				t.Errorf("the command sees %s=%q", name, v)
			}
		}
	}
}

func TestTheURLIsTheFlagsOrTheEnvironmentsOrTheFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "url")
	if err := os.WriteFile(file, []byte(" file://"+dir+"/three\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		made string
		env  []string
		args []string
	}{
		{"one", []string{envURL + "=file://" + dir + "/two", envURLFile + "=" + file}, []string{"--url", "file://" + dir + "/one"}},
		{"one", []string{envURL + "=", envURLFile + "="}, []string{"--url", "file://" + dir + "/one"}},
		{"two", []string{envURL + "=file://" + dir + "/two", envURLFile + "=" + file}, nil},
		{"two", []string{envURL + "=file://" + dir + "/two", envURLFile + "="}, nil},
		{"three", []string{envURLFile + "=" + file}, nil},
		{"state/dlock", []string{"XDG_STATE_HOME=" + dir + "/state", "HOME=" + dir}, nil},
	} {
		if c.made == "state/dlock" && !allSeen {
			continue // another folder there
		}
		wantInside(t, c.env, 0, "", append(append([]string{"run"}, c.args...), "k", "--", "true")...)
		if _, err := os.Stat(filepath.Join(dir, c.made)); err != nil {
			t.Errorf("%q and %q do not lead to %s", c.env, c.args, c.made)
		}
		_ = os.RemoveAll(filepath.Join(dir, c.made))
	}
	for env, says := range map[string]string{
		envURLFile + "=" + dir + "/missing":         "cannot be read",
		envURLFile + "=" + os.DevNull:               "one line",
		envURLFile + "=" + dir:                      "cannot be read",
		envURLFile + "=":                            envURLFile + " is set and empty",
		envURL + "=":                                envURL + " is set and empty",
		envURL + "=nosuch://h":                      "unknown",
		envURL + "=s3cr3t:x":                        "begin with a driver's name",
		envURL + "=" + "file:///tmp?no_parameter=1": "no_parameter",
	} {
		wantInside(t, []string{env}, exitUsage, says, "run", "k", "--", "true")
	}
	wantInside(t, []string{envURL + "=", envURLFile + "=" + file}, exitUsage, "empty", "run", "k", "--", "true")

	long := filepath.Join(dir, "long")
	for mode, c := range map[os.FileMode]struct{ url, says string }{
		0o644: {"redis://u:" + canary + "@127.0.0.1:1", "chmod o-r"},
		0o602: {"file://" + dir + "/locks", "chmod o-w"},
		0o640: {strings.Repeat("x", 1<<20), "one line"},
	} {
		if err := os.WriteFile(long, []byte(c.url+"\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(long, mode); err != nil {
			t.Fatal(err)
		}
		wantInside(t, []string{envURLFile + "=" + long}, exitUsage, c.says, "run", "--wait", "0", "k", "--", "true")
		_ = os.Remove(long)
	}
	wantInside(t, []string{envURLFile + "=/dev/zero"}, exitUsage, "one line", "run", "k", "--", "true")
}

// A dlock run inside another one gets no URL. It must not lock on another backend, nor wait for
// a key that the outer one holds.
func TestADlockRunInsideOfAnotherNeedsItsOwnURLAndKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	url := "file://" + w.dir + "/locks"
	_, stderr := w.want(exitUsage, "run", "a", "--", w.exe, "run", "b", "--", "touch", "ran")
	if !strings.Contains(stderr, "--url") || !strings.Contains(stderr, envURL) {
		t.Errorf("stderr is %q", stderr)
	}
	for _, inner := range [][]string{
		{"a"}, {"--wait", "0", "a"}, {"--skip", "a"},
		{"b", "--", w.exe, "run", "--url", url, "a"}, // through another key
	} {
		args := append([]string{"run", "a", "--", w.exe, "run", "--url", url}, append(inner, "--", "touch", "ran")...)
		if _, stderr := w.want(exitUsage, args...); !strings.Contains(stderr, `"a"`) {
			t.Errorf("%q: stderr is %q", inner, stderr)
		}
	}
	if w.exists("ran") {
		t.Error("the command was run")
	}
	w.want(0, "run", "a", "--", w.exe, "run", "--url", url, "b", "--", "touch", "ran")
	if !w.exists("ran") {
		t.Error("another key with a URL of its own was not locked")
	}
}

func TestVerboseSaysWhereItLocks(t *testing.T) {
	dir := t.TempDir()
	for url, says := range map[string]string{
		"file://" + dir + "/a%20b":                  "locks on file://" + dir + "/a%20b\n",
		"redis://user:" + canary + "@127.0.0.1:1/2": "locks on redis://127.0.0.1:1/2\n",
		"redlock:redis://:" + canary + "@127.0.0.1:1,valkey://127.0.0.1:2,redis://127.0.0.1:3": "locks on redlock:redis://127.0.0.1:1/0,valkey://127.0.0.1:2/0,redis://127.0.0.1:3/0\n",
		"postgres://u:" + canary + "@127.0.0.1:1/db?password=" + canary:                        "locks on ",
	} {
		_, _, stderr := inside(t, []string{envURL + "=" + url}, "run", "--verbose", "--wait", "0", "k", "--", "true")
		if !strings.HasPrefix(stderr, "dlock: "+says) || strings.Contains(stderr, canary) {
			t.Errorf("%s: stderr is %q, want %q", url, stderr, says)
		}
	}
}

func TestWrongUsageIsNamedBeforeAnythingRuns(t *testing.T) {
	dir := t.TempDir()
	env := []string{envURL + "=file://" + dir + "/locks"}
	ran := filepath.Join(dir, "ran")
	for _, c := range []struct {
		says string
		args string // KEY and the command follow, unless there is a "|"
	}{
		{"TTL", "--url redis://127.0.0.1:1 --ttl 3.9s"},
		{"TTL", "--url redis://127.0.0.1:1?ttl=1s"},
		{"has none", "--ttl 10s"},
		{"--ttl must be a duration", "--url redis://127.0.0.1:1 --ttl soon"},
		{"--ttl", "--url redis://127.0.0.1:1 --ttl -5s"},
		{"--wait", "--wait sometime"},
		{"--wait", "--wait -1s"},
		{"--at-least", "--at-least x"},
		{"--max-hold", "--max-hold -1s"},
		{"contradict", "--skip --wait forever"},
		{"contradict", "--skip -E 3"},
		{"0 to 255", "-E 256"},
		{"0 to 255", "--conflict-exit-code no"},
		{"--label: ", "--label a|b"},
		{"--shared: redis has no shared mode", "--url redis://127.0.0.1:1 --shared"},
		{"excludes no other process", "--url memory:"},
		{"excludes no other process", "--url redlock:memory:a,memory:b,memory:c"},
		{"excludes no other process", "--url redlock:redis://127.0.0.1:1,redis://127.0.0.1:2,memory:c"},
		{"--url", "--url="},
		{"there is no such flag", "--nope"},
		{"no such flag: dlock run has --at-least, ", "--wiat 3s"},
		{"--wait needs a value", "|run k --wait"},
		{"contradict", "--skip -E3"},
		{"wrong", "|version k"},
		{"the command after it: dlock run [flags] KEY -- ", "|run k --"},
		{"the command after it: dlock elect [flags] KEY", "|elect k"},
		{"stand before --", "|run k true"},
		{"one key", "|run -- true"},
		{"one key", "|run k l -- true"},
		{"did you mean dlock run KEY", "|nightly -- true"},
		{"no such command: dlock has bootstrap, completion, ", "|walk"},
		{"no such command", "|help walk"},
		{"wrong arguments: dlock help", "|help run run"},
		{"only for bash, fish, zsh", "|completion nosuch"},
		{"wrong arguments: dlock drivers", "|drivers k"},
	} {
		args := strings.Fields(c.args)
		if strings.HasPrefix(c.args, "|") {
			args = strings.Fields(c.args[1:])
		} else {
			args = append(append([]string{"run"}, args...), "k", "--", "touch", ran)
		}
		wantInside(t, env, exitUsage, c.says, args...)
	}
	for _, key := range []string{"", strings.Repeat("k", 513)} {
		wantInside(t, env, exitUsage, "key", "run", key, "--", "touch", ran)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command was run")
	}
}

// A user of the command cannot import a driver, but can install the command that has it.
func TestAURLWithoutADriverNamesTheCommandThatHasIt(t *testing.T) {
	const all = "go install github.com/redlock-go/redlock/drivers/everything/cmd/dlock@latest"
	for url, has := range map[string]bool{
		"etcd://h:1": true, "zks://h:1/path": true, "mysql://u@h:1/db": true, "redlock:etcd://h:1,etcd://i:1,etcd://j:1": true,
		"nosuch://h:1": false, "redlock:resid://h:1,redis://i:1,redis://j:1": false,
	} {
		for _, args := range []string{"run k -- true", "elect k -- true", "status", "unlock k --token 5", "doctor", "bootstrap", "bootstrap --sql"} {
			code, _, stderr := inside(t, []string{envURL + "=" + url}, strings.Fields(args)...)
			if code != exitUsage || strings.Contains(stderr, all) != has || strings.Contains(stderr, "import") || !strings.Contains(stderr, "registered: both, file, ") {
				t.Errorf("%s with %s: exit code %d, want %d; stderr is %q", args, url, code, exitUsage, stderr)
			}
		}
	}
}

func TestEndingsTellTheTruth(t *testing.T) {
	for _, c := range []struct {
		code   int
		says   string
		unsaid string
		args   []string
	}{
		// No error advises to remove data that is not a lock, nor to wait where waiting cannot
		// help.
		{exitUnavailable, "name a folder", "remove", []string{"--url", "file:///etc/passwd"}},
		{exitUnavailable, "name a folder", "--wait", []string{"--url", "file:///etc/passwd", "--wait", "1s"}},
		{exitUnavailable, "wait longer (--wait)", "remove", []string{"--url", "redis://127.0.0.1:1", "--wait", "0"}},
	} {
		code, _, stderr := inside(t, nil, append(append([]string{"run"}, c.args...), "k", "--", "true")...)
		if code != c.code || !strings.Contains(stderr, c.says) || strings.Contains(stderr, c.unsaid) {
			t.Errorf("%q: exit code %d, want %d; stderr is %q, want %q and not %q", c.args, code, c.code, stderr, c.says, c.unsaid)
		}
	}
	for _, args := range [][]string{{"drivers"}, {"version"}, {"--version"}, {"help"}, {"run", "--help"}} {
		var stderr bytes.Buffer
		code := Main(append([]string{"dlock"}, args...), strings.NewReader(""), fullDisk{}, &stderr)
		if code != exitIO || stderr.String() != "dlock: the output cannot be written: the disk is full\n" {
			t.Errorf("%q on a full disk: exit code %d, want %d; stderr is %q", args, code, exitIO, &stderr)
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestVersionNamesThisModuleAndGo(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		code, stdout, _ := inside(t, nil, args...)
		if code != 0 || !strings.HasPrefix(stdout, "dlock ") || !strings.Contains(stdout, " go1.") {
			t.Errorf("%q: exit code %d, stdout %q", args, code, stdout)
		}
	}
}

func TestTheExitCodeOfAConflictCanBeChosen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, release := w.holder("k")
	for _, flags := range []string{"-E 7 --wait 0", "--conflict-exit-code 7 --wait 50ms", "--wait 0 -E7"} {
		code, _, stderr := w.run(append(append([]string{"run"}, strings.Fields(flags)...), "k", "--", "touch", "ran")...)
		if code != 7 || !strings.Contains(stderr, "held by") {
			t.Errorf("%s: exit code %d, want 7; stderr: %s", flags, code, stderr)
		}
	}
	release()
	w.want(3, "run", "-E", "7", "--wait", "1m", "k", "--", "sh", "-c", "exit 3")
}

func TestSharedLocksStandSideBySide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, release := w.holder("k", "--shared")
	w.want(0, "run", "--shared", "--wait", "0", "k", "--", "true")
	if out, _ := w.want(0, "status", "k"); !strings.Contains(out, "held, shared") {
		t.Errorf("status of a shared lock: %s", out)
	}
	w.want(exitHeld, "run", "--wait", "0", "k", "--", "true")
	release()
	_, release = w.holder("l")
	w.want(exitHeld, "run", "--shared", "--wait", "0", "l", "--", "true")
	release()
}
