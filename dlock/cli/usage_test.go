//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// A use is one command line and what comes of it. Its arguments are separated by spaces, up to a
// "|", behind which all is one argument. DIR is a folder, and NOBODY an address where nobody listens.
type use struct {
	args           string
	code           int
	stdout, stderr string // the output has this; empty: there is none
}

// try runs the command lines. Errors are one line.
func try(t *testing.T, env []string, dir string, uses []use) {
	t.Helper()
	name := strings.NewReplacer("DIR", dir, "NOBODY", "127.0.0.1:1")
	for i, e := range env {
		env[i] = name.Replace(e)
	}
	for _, u := range uses {
		words, last, one := strings.Cut(name.Replace(u.args), "|")
		args := strings.Fields(words)
		if one {
			args = append(args, last)
		}
		run := outside
		if u.code == exitUsage {
			run = inside // it starts nothing
		}
		code, stdout, stderr := run(t, env, args...)
		if code != u.code || !has(stdout, name.Replace(u.stdout)) || !has(stderr, name.Replace(u.stderr)) || strings.Count(stderr, "\n") > 1 {
			t.Errorf("%q dlock %q: exit code %d, want %d; stdout %q, want %q; stderr %q, want %q", env, args, code, u.code, stdout, u.stdout, stderr, u.stderr)
		}
	}
}

func has(out, want string) bool { return strings.Contains(out, want) && (want != "" || out == "") }

// script makes a file of the folder that may be executed.
func script(t *testing.T, dir, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestUsesAndWhatComesOfThem(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, "text", "no program\n", 0o600)
	script(t, dir, "noformat", "no program\n", 0o700)
	script(t, dir, "nointerpreter", "#!/no/such\n", 0o700)
	try(t, []string{envURL + "=file://DIR/locks"}, dir, []use{
		{"", 0, "Usage: dlock COMMAND", ""},
		{"help", 0, "dlock run [flags] KEY -- COMMAND", ""},
		{"help run", 0, "Usage: dlock run [flags] KEY -- COMMAND", ""},
		{"help man", 0, ".SH DLOCK BOOTSTRAP\n.PP\n", ""},
		{"help man", 0, ".nf\n    \\-\\-url URL         the backend (dlock help url)\n", ""},
		{"run --help", 0, "--wait D ", ""},
		{"elect -h", 0, "Usage: dlock elect ", ""},
		{"version", 0, " go1.", ""},
		{"--version", 0, "dlock ", ""},
		{"drivers", 0, "postgres://USER:PASSWORD@HOST:5432/DB", ""},
		{"completion bash", 0, "complete -o default -F _dlock dlock\n", ""},
		{"__complete d", 0, "doctor\tcheck the servers\ndrivers\tlist the drivers and the forms of their URLs\n", ""},
		{"__complete run --at", 0, "--at-least\tkeep the lock until D after the grant", ""},
		{"__complete status nightl", 0, "", ""},

		{"run k -- true", 0, "", ""},
		{"run --wait 1s -E7 --label=x --max-hold 1m k -- true", 0, "", ""},
		{"-wait", exitUsage, "", "no such command"},
		{"run -wait 1s k -- echo --wait", 0, "--wait\n", ""},
		{"run k -- sh -c|exit 3", 3, "", ""},
		{"run k -- sh -c|exit 255", 255, "", ""},
		{"run k -- sh -c|kill -TERM $$", 128 + 15, "", ""},
		{"run k -- sh -c|kill -KILL $$", 128 + 9, "", ""},
		{"run k -- there-is-no-such-command", 127, "", `dlock: "there-is-no-such-command": not found`},
		{"run k -- DIR/nothing", 127, "", "not found"},
		{"run k -- DIR/nointerpreter", 127, "", "or its interpreter"},
		{"run k -- DIR/text", 126, "", "permission denied"},
		{"run k -- /", 126, "", "directory"},
		{"run k -- DIR/noformat", 126, "", "exec format error"},
		{"run k -- sh -c|echo slot=$DLOCK_SLOT", 0, "slot=\n", ""},
		{"run --slots 2 k -- sh -c|echo slot=$DLOCK_SLOT", 0, "slot=", ""},

		{"run", exitUsage, "", "dlock run [flags] KEY -- COMMAND [ARG...]"},
		{"run k --", exitUsage, "", "one key must stand before --"},
		{"run -- touch DIR/ran", exitUsage, "", "one key"},
		{"run k l -- touch DIR/ran", exitUsage, "", "one key"},
		{"elect k touch DIR/ran", exitUsage, "", "and the command after it: dlock elect "},
		{"run --url redis://NOBODY --ttl 3.9s k -- true", exitUsage, "", "the TTL is 3.9s"},
		{"run --url redis://NOBODY?ttl=1s k -- true", exitUsage, "", "TTL"},
		{"run --ttl 10s k -- true", exitUsage, "", "TTL: file has none"},
		{"run --ttl soon k -- true", exitUsage, "", "--ttl must be a duration"},
		{"run --ttl -5s k -- true", exitUsage, "", "--ttl must be a duration"},
		{"run --wait sometime k -- true", exitUsage, "", "--wait must be 0, a duration"},
		{"run --wait -1s k -- true", exitUsage, "", "--wait"},
		{"run k --wait", exitUsage, "", "--wait needs a value"},
		{"run --at-least x k -- true", exitUsage, "", "--at-least"},
		{"run --skip --wait forever k -- true", exitUsage, "", "contradict"},
		{"run --skip -E 3 k -- true", exitUsage, "", "--skip and --conflict-exit-code contradict each other"},
		{"run --slots 2 --shared k -- true", exitUsage, "", "contradict"},
		{"run --slots 0 k -- true", exitUsage, "", "from 1 to 1024"},
		{"run --slots 1025 k -- true", exitUsage, "", "from 1 to 1024"},
		{"run -E 256 k -- true", exitUsage, "", "from 0 to 255"},
		{"run --conflict-exit-code=no k -- true", exitUsage, "", "from 0 to 255"},
		{"run --url memory: k -- true", exitUsage, "", "excludes no other process"},
		{"run --url redlock:redis://NOBODY,redis://127.0.0.1:2,memory:c k -- true", exitUsage, "", "excludes no other process"},
		{"run --url= k -- true", exitUsage, "", "--url is empty"},
		{"run --wiat 3s k -- true", exitUsage, "", "no such flag: dlock run has --at-least, "},
		{"rnu k -- true", exitUsage, "", "did you mean dlock run KEY"},
		{"doctor --url|both:memory:a memory:b", exitUsage, "", "memory and memory: cannot be checked"},
		{"walk", exitUsage, "", "no such command: dlock has bootstrap, completion, "},
		{"help walk", exitUsage, "", "no such command or topic"},
		{"help run run", exitUsage, "", "wrong arguments: dlock help"},
		{"completion nosuch", exitUsage, "", "only for bash, fish, zsh"},
		{"drivers k", exitUsage, "", "wrong arguments: dlock drivers"},
		{"version k", exitUsage, "", "wrong arguments"},
		{"run|", exitUsage, "", "one key"},
		{"run " + strings.Repeat("k", 513) + " -- true", exitUsage, "", "key"},

		{"unlock k", exitUsage, "", "--token is missing: dlock status k shows the holder's"},
		{"unlock --token 3", exitUsage, "", "wrong arguments: dlock unlock [flags] KEY"},
		{"unlock k --token x", exitUsage, "", "--token must be a number"},
		{"unlock k --token 3 --session 4", exitUsage, "", "--token and --session contradict each other: leave one out"},
		{"unlock k --token 3", exitHeld, "", "nothing was changed (dlock status k shows the holder's)"},
		{"status --json=x", exitUsage, "", "--json must be true or false ("},
		{"status --jsn", exitUsage, "", "no such flag: dlock status has --json, --url, --help"},
		{"status|", exitUsage, "", "key"},
		{"status -- k", 0, "free", ""},
		{"status", 0, "no lock is held on file://DIR/locks", ""},
		{"doctor k", exitUsage, "", "wrong arguments: dlock doctor [flags]"},
		{"bootstrap --changed --sql", exitUsage, "", "contradict"},
		{"bootstrap --sql", exitUsage, "", "nothing to prepare"},
		{"bootstrap --sql --url postgres://app@NOBODY/db", 0, `GRANT USAGE, UPDATE ON SEQUENCE "public".dlock_fence TO "app"`, ""},
		{"bootstrap --url postgres://NOBODY/db", exitUsage, "", "--sql prints what the database needs"},

		// No error advises to remove what is not a lock, nor to wait where waiting cannot help.
		{"run --wait 1s --url file:///etc/passwd k -- true", exitUnavailable, "", "name a folder"},
		{"run --wait 0 --url redis://NOBODY k -- true", exitUnavailable, "", "check the backend and its URL, or wait longer (--wait)"},
	})
	// Inside of another dlock run. (In such an environment there is no URL.)
	try(t, []string{envKeys + "=a b"}, dir, []use{
		{"run c -- touch DIR/ran", exitUsage, "", "give --url, " + envURL},
		{"run a --url file://DIR -- touch DIR/ran", exitUsage, "", `holds "a" already`},
		{"run b --skip --url file://DIR -- touch DIR/ran", exitUsage, "", `holds "b" already`},
	})
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("a command was run")
	}
	for _, args := range []string{"drivers", "version", "help", "run --help", "status"} {
		var stderr bytes.Buffer
		args := append([]string{"dlock"}, strings.Fields(args)...)
		if args[1] == "status" {
			args = append(args, "--url", "file://"+dir+"/locks")
		}
		if code := Main(args, strings.NewReader(""), fullDisk{}, &stderr); code != exitIO || stderr.String() != "dlock: the output cannot be written: the disk is full\n" {
			t.Errorf("%q on a full disk: exit code %d, want %d; stderr is %q", args, code, exitIO, &stderr)
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

// No command says that all is well while no server, or no majority, can be asked.
func TestADeadServerHasNoGoodState(t *testing.T) {
	for _, url := range []string{
		"redis://NOBODY", "postgres://NOBODY/db", "redlock:redis://NOBODY,valkey://127.0.0.1:2,redis://127.0.0.1:3", "redlock:memory:a,redis://NOBODY,redis://127.0.0.1:2",
	} {
		var uses []use
		for _, args := range []string{"status", "status --json", "status k", "doctor", "unlock k --token 5", "unlock k --session 1.2"} {
			if strings.HasPrefix(url, "postgres:") != strings.Contains(args, "--token") || !strings.Contains(args, "unlock") {
				uses = append(uses, use{args, exitUnavailable, "", "refused"})
			}
		}
		try(t, []string{envURL + "=" + url}, "", uses)
	}
}

// A user of the command cannot import a driver, but can install the command that has it.
func TestAURLWithoutADriverNamesTheCommandThatHasIt(t *testing.T) {
	const registered = "registered: both, faulty, file, memory, postgres, postgresql, redis, redis+unix, rediss, redlock, valkey, valkey+unix, valkeys"
	const all = " here; the command with all drivers: go install github.com/redlock-go/redlock/drivers/everything/cmd/dlock@latest; " + registered
	for url, says := range map[string]string{
		"etcd://h:1": `"etcd" is unknown` + all, "redlock:zks://h:1,zks://i:1,zks://j:1": `"zks" is unknown` + all,
		"nosuch://h:1": `"nosuch" is unknown; ` + registered, "redlock:resid://h:1,redis://i:1,redis://j:1": `"resid" is unknown; ` + registered,
	} {
		try(t, []string{envURL + "=" + url}, "", []use{{"run k -- true", exitUsage, "", says}, {"status", exitUsage, "", says}, {"bootstrap --sql", exitUsage, "", says}})
	}
}

func TestTheURLIsTheFlagsOrTheEnvironmentsOrTheFiles(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, "url", " file://"+dir+"/three\n", 0o600)
	for _, c := range []struct{ leadsTo, env, args string }{
		{"one", envURL + "=file://DIR/two", "--url file://DIR/one"},
		{"one", envURL + "= " + envURLFile + "=", "--url file://DIR/one"},
		{"two", envURL + "=file://DIR/two " + envURLFile + "=", ""},
		{"three", envURLFile + "=DIR/url", ""},
		{"state/dlock", "XDG_STATE_HOME=DIR/state HOME=DIR", ""},
	} {
		if c.leadsTo == "state/dlock" && !allSeen {
			continue // another folder there
		}
		try(t, strings.Fields(c.env), dir, []use{{"run " + c.args + " k -- true", 0, "", ""}})
		if _, err := os.Stat(filepath.Join(dir, c.leadsTo)); err != nil {
			t.Errorf("%s and %s do not lead to %s", c.env, c.args, c.leadsTo)
		}
		_ = os.RemoveAll(filepath.Join(dir, c.leadsTo))
	}
	script(t, dir, "long", strings.Repeat("x", 1<<20), 0o640)
	script(t, dir, "secret", "redis://u:"+canary+"@127.0.0.1:1", 0o600)
	script(t, dir, "public", "file://"+dir+"/locks", 0o600)
	for name, mode := range map[string]os.FileMode{"secret": 0o644, "public": 0o602} { // whatever the umask is
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for env, says := range map[string]string{
		envURLFile + "=DIR/missing":            "cannot be read",
		envURLFile + "=" + os.DevNull:          "one line",
		envURLFile + "=/dev/zero":              "one line",
		envURLFile + "=DIR/long":               "one line",
		envURLFile + "=DIR/secret":             "chmod o-r",
		envURLFile + "=DIR/public":             "chmod o-w",
		envURLFile + "=DIR":                    "cannot be read",
		envURLFile + "=":                       envURLFile + " is set and empty",
		envURL + "=":                           envURL + " is set and empty",
		envURL + "=s3cr3t:x":                   "begin with a driver's name",
		envURL + "=file:///tmp?no_parameter=1": "no_parameter",
	} {
		try(t, []string{env}, dir, []use{{"run k -- true", exitUsage, "", says}})
	}
	for url, says := range map[string]string{
		"file://DIR/a%20b":                          "locks on file://DIR/a%20b\n",
		"redis://user:" + canary + "@127.0.0.1:1/2": "locks on redis://127.0.0.1:1/2\n",
		"redlock:redis://:" + canary + "@NOBODY,valkey://127.0.0.1:2,redis://127.0.0.1:3": "locks on redlock:redis://127.0.0.1:1/0,valkey://127.0.0.1:2/0,redis://127.0.0.1:3/0\n",
		"postgres://u:" + canary + "@NOBODY/db?password=" + canary:                        "locks on ",
	} {
		name := strings.NewReplacer("DIR", dir, "NOBODY", "127.0.0.1:1")
		run := outside
		if !strings.HasPrefix(url, "file:") {
			run = inside // it gets no lock
		}
		_, _, stderr := run(t, []string{envURL + "=" + name.Replace(url)}, "run", "--verbose", "--wait", "0", "k", "--", "true")
		if !strings.HasPrefix(stderr, "dlock: "+name.Replace(says)) || strings.Contains(stderr, canary) {
			t.Errorf("%s: stderr is %q, want %q", url, stderr, says)
		}
	}
}

// The manual is written once: each command and flag is in it, and it has no other.
func TestTheManualHasEachCommandAndFlag(t *testing.T) {
	for name, newCommand := range commands() {
		if form, does := summary(name); form == "" || does == "" {
			t.Errorf("the manual does not list %s", name)
		}
		c := (&console{}).newCall(name)
		newCommand(c)
		c.flags.VisitAll(func(f *flag.Flag) {
			if _, does := lookup("dlock "+name, "--"+f.Name); does == "" {
				t.Errorf("the manual does not describe %s --%s", name, f.Name)
			}
		})
		for line := range strings.Lines(section("dlock " + name)) {
			if flag, isFlag := strings.CutPrefix(line, "    --"); isFlag && c.flags.Lookup(strings.Fields(flag)[0]) == nil {
				t.Errorf("%s has no flag --%s", name, flag)
			}
		}
	}
	for _, topic := range strings.Fields("url environment danger exit cron systemd run elect drivers") {
		code, out, stderr := inside(t, nil, "help", topic)
		if code != 0 || len(out) < 300 || strings.Contains(out, "//\n") || strings.Contains(out, "\n# ") || disturbing(out) != "" {
			t.Errorf("dlock help %s: exit code %d, %s%s", topic, code, out, stderr)
		}
	}
}

func TestTheCommandGetsTheLeaseAndNeverTheURL(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	// The variables that an outer dlock run has set are replaced.
	w.env = []string{"DLOCK_DEADLINE=2001-01-01T00:00:00Z", "DLOCK_KEY=outer", "DLOCK_KEYS=a%20b+c outer", "DLOCK_FENCE=1", envURLFile + "=/nowhere", "KEPT=yes"}
	env := func(args ...string) map[string]string {
		p := w.start(append(args, "--", "env")...)
		if code := p.wait(); code != 0 {
			t.Fatalf("exit code %d: %s", code, &p.err)
		}
		m := map[string]string{}
		for line := range strings.Lines(p.out.String()) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			m[name] = value
		}
		return m
	}
	start := time.Now()
	session, timed := env("run", "--url", "file://"+w.dir+"/locks", "some key"), env("run", "--ttl", "100s", "k")
	if session["DLOCK_KEY"] != "some key" || session["DLOCK_KEYS"] != "a+b+c outer some+key" || session["KEPT"] != "yes" {
		t.Errorf("the key is %q, the keys are %q, KEPT is %q", session["DLOCK_KEY"], session["DLOCK_KEYS"], session["KEPT"])
	}
	if n, err := strconv.ParseUint(session["DLOCK_FENCE"], 10, 64); err != nil || n < 1e15 {
		t.Errorf("the token is %q", session["DLOCK_FENCE"])
	}
	if d, ok := session["DLOCK_DEADLINE"]; ok {
		t.Errorf("a lock without TTL has the deadline %q", d)
	}
	d, err := time.Parse(time.RFC3339Nano, timed["DLOCK_DEADLINE"])
	if left := d.Sub(start); err != nil || left < 90*time.Second || left > 100*time.Second+time.Since(start) {
		t.Errorf("the deadline is %q, %v from the start, want 99 s or so", timed["DLOCK_DEADLINE"], left)
	}
	for _, m := range []map[string]string{session, timed} {
		if m[envURL] != "" || m[envURLFile] != "" {
			t.Errorf("the command sees the URL %q, or its file %q", m[envURL], m[envURLFile])
		}
	}
}

// A dlock run inside another one gets no URL. It must not lock on another backend, nor wait for
// a key that the outer one holds.
func TestADlockRunInsideOfAnotherNeedsItsOwnURLAndKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for inner, code := range map[string]int{
		"b --url URL -- EXE run a --url URL": exitUsage, // through another key
		"b --url URL":                        0,
	} {
		args := append([]string{"run", "a", "--", w.exe, "run"}, strings.Fields(strings.NewReplacer("URL", w.url, "EXE", w.exe).Replace(inner))...)
		_, stderr := w.want(code, append(args, "--", "touch", "ran")...)
		if code != 0 && !strings.Contains(stderr, `"a"`) && !strings.Contains(stderr, "give --url") || w.exists("ran") != (code == 0) {
			t.Errorf("%s: stderr is %q", inner, stderr)
		}
		_ = os.Remove(w.path("ran"))
	}
}

// What is held: with which flags the exit code is which, and what is said.
func TestWhatIsHeldIsWaitedForAsLongAsToldAndExits75(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, release := w.holder("k", "--label", "web-4")
	for flags, code := range map[string]int{
		"--wait 0": exitHeld, "--wait " + aWhile.String(): exitHeld, "--wait 0 --shared": exitHeld,
		"-E 7 --wait 0": 7, "--wait 0 -E7": 7, "--conflict-exit-code 7 --wait 50ms": 7,
		"--skip": 0, "--skip --wait 0": 0, "--skip --wait 50ms": 0,
	} {
		start := time.Now()
		args := append(append([]string{"run", "--url", w.url}, strings.Fields(flags)...), "k", "--", "touch", w.path("ran"))
		got, stdout, stderr := inside(t, nil, args...)
		if got != code {
			t.Errorf("%s: exit code %d, want %d; stderr is %q", flags, got, code, stderr)
		}
		if says := strings.Contains(stderr, "held by web-4/") && strings.Contains(stderr, "--wait"); says != (code != 0) || code == 0 && stdout+stderr != "" {
			t.Errorf("%s: stdout is %q, stderr %q: with --skip it must be silent, and otherwise name the holder, and say what to do", flags, stdout, stderr)
		}
		if took := time.Since(start); strings.Contains(flags, aWhile.String()) && took < aWhile {
			t.Errorf("%s took %v", flags, took)
		}
	}
	if w.exists("ran") {
		t.Error("the command was run")
	}
	waiter, long := w.start("run", "k", "--", "touch", "ran"), w.start("run", "--wait", "1m", "k", "--", "touch", "ran too")
	release()
	for _, p := range []*proc{waiter, long} {
		if code := p.wait(); code != 0 || p.err.String() != "" {
			t.Errorf("%q: exit code %d, stderr: %s", p.Args, code, &p.err)
		}
	}
	if !w.exists("ran") || !w.exists("ran too") {
		t.Error("a command was not run")
	}
	_, release = w.holder("s", "--shared")
	defer release()
	w.want(0, "run", "--shared", "--wait", "0", "s", "--", "true")
	w.want(exitHeld, "run", "--wait", "0", "s", "--", "true")
	if out, _ := w.want(0, "status", "s"); !strings.Contains(out, "held, shared") {
		t.Errorf("status of a shared lock: %s", out)
	}
}

func TestBootstrapSaysWhereThereIsNothingToState(t *testing.T) {
	t.Parallel()
	redis := server.Redis(t).URL()
	for url, says := range map[string]string{
		"memory:": "no restart guard: there is nothing", redis: "restart_guard=30s sets one on Redis and Valkey", "redlock:memory:a,memory:b": "no restart guard",
		"redlock:" + redis + ",restart_guard=off": "restart_guard=30s sets one on Redis and Valkey",
	} {
		for _, flags := range []string{"", "--dry-run", "--changed", "--changed --dry-run"} {
			stdout, stderr := on(t, url).want(exitUsage, append([]string{"bootstrap"}, strings.Fields(flags)...)...)
			if !strings.Contains(stderr, says) || stdout != "" {
				t.Errorf("%s with %q: stderr is %q, stdout %q", url, flags, stderr, stdout)
			}
		}
	}
	guarded := on(t, redis+"?restart_guard=6s")
	if out, _ := guarded.want(0, "bootstrap", "--dry-run"); out != "new\n" {
		t.Errorf("of a lone server with a guard a dry run says %q", out)
	}
	if stdout, stderr := guarded.want(exitUsage, "bootstrap", "--changed"); !strings.Contains(stderr, "a quorum") || stdout != "" {
		t.Errorf("of a lone server --changed says %q, %q", stdout, stderr)
	}
}
