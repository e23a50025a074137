//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

func TestMainUsesTheGivenStreams(t *testing.T) {
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string // each begins with this
	}{
		{"dlock drivers", 0, "DRIVER", ""},
		{"dlock help run", 0, "Usage: dlock run", ""},
		{"dlock walk", exitUsage, "", "dlock: "},
		{"dlock run", exitUsage, "", "dlock: "},
		{"", 0, "Usage: dlock", ""},
	} {
		var stdout, stderr bytes.Buffer
		code := Main(strings.Fields(c.args), strings.NewReader(""), &stdout, &stderr)
		if code != c.code || !begins(stdout.String(), c.stdout) || !begins(stderr.String(), c.stderr) {
			t.Errorf("%q: exit code %d, want %d; stdout %q; stderr %q", c.args, code, c.code, &stdout, &stderr)
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
	for _, topic := range strings.Fields("url environment danger exit cron systemd run elect completion") {
		var stdout, stderr bytes.Buffer
		code := Main([]string{"dlock", "help", topic}, strings.NewReader(""), &stdout, &stderr)
		if out := stdout.String(); code != 0 || len(out) < 300 || strings.Contains(out, "//") || strings.Contains(out, "\n# ") || disturbing(out) != "" {
			t.Errorf("dlock help %s: exit code %d, %s%s", topic, code, out, &stderr)
		}
	}
}

// While dlock waits for a backend that is out of reach it says so when that begins, and then once
// a minute, with how to stop it.
func TestAnOutageThatIsWaitedOutIsToldEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr buffer
		c := &console{lines: newBacklog(&stderr)}
		client, err := dlock.New(memory.New())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close() //nolint:errcheck // nothing is held
		j := &job{call: &call{console: c}, wait: forever, client: client}
		tell := func(err error) {
			j.hooks().Event(t.Context(), dlock.Event{Op: "attempt", Attempt: 2, Err: err})
			time.Sleep(time.Second)
		}
		for range 150 {
			tell(errors.New("connection refused"))
		}
		tell(&driver.HeldError{}) // it is back
		tell(errors.New("connection refused"))
		c.lines.close()
		lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
		if len(lines) != 4 || !strings.Contains(lines[1], "for 1m0s") || !strings.Contains(lines[2], "for 2m0s") || !strings.Contains(lines[2], "ctrl-C") || !strings.Contains(lines[3], "out of reach") {
			t.Errorf("got %q", lines)
		}
	})
}

func begins(s, prefix string) bool {
	return strings.HasPrefix(s, prefix) && (prefix != "" || s == "")
}
