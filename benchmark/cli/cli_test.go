package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	_ "github.com/redlock-go/redlock/drivers/memory"
	_ "github.com/redlock-go/redlock/drivers/redlock"
)

func TestMain(m *testing.M) {
	for _, name := range []string{"DLOCK_URL", "DLOCK_URL_FILE"} {
		_ = os.Unsetenv(name)
	}
	os.Exit(m.Run())
}

func TestWhatIsWrongIsSaidInALineWithoutASecret(t *testing.T) {
	for _, c := range []struct {
		args string
		env  string
		code int
		want string
	}{
		{"-fast", "", exitUsage, "-fast"},
		{"now", "", exitUsage, "-help"},
		{"-run doubel", "", exitFailed, "nothing matches"},
		{"-url nonsense://host", "", exitUsage, "nonsense"},
		{"-url memory:?speed=9", "", exitUsage, "speed"},
		{"-url memory: -run single", "", exitUsage, "contradict"},
		{"-run single", "memory:", exitUsage, "DLOCK_URL"},
		{"-url redis://user:s3cret@127.0.0.1:1", "", exitUsage, "a password on the command line can be read by every user of this machine: put the URL into DLOCK_URL"},
		{"--url=redis://:s3cret@127.0.0.1:1", "", exitUsage, "put the URL into DLOCK_URL"},
		{"-url=redlock:redis://a,redis://:s3cret@b", "", exitUsage, "put the URL into DLOCK_URL"},
		{"-for=redis://:s3cret@b", "", exitUsage, "DLOCK_URL"},
		{"-for=s3cret", "", exitUsage, "-for"},
		{"-for -3s", "", exitUsage, "-3s"},
		{"-run (5", "", exitUsage, "-run"},
		{"", "redis://:s3cret@127.0.0.1:1?call_timeout=100ms", exitUnavailable, "127.0.0.1:1"},
	} {
		if c.env != "" {
			t.Setenv("DLOCK_URL", c.env)
		} else {
			_ = os.Unsetenv("DLOCK_URL")
		}
		var out, errs bytes.Buffer
		code := Main(append([]string{"benchmark"}, strings.Fields(c.args)...), &out, &errs)
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		last := lines[len(lines)-1]
		if code != c.code || !strings.HasPrefix(last, "benchmark: ") || !strings.Contains(last, c.want) {
			t.Errorf("%q: exit code %d, want %d; it must end with a line with %q: %s", c.args, code, c.code, c.want, errs.String())
		}
		if strings.Contains(errs.String()+out.String(), "s3cret") {
			t.Errorf("%q: it shows the password: %s", c.args, errs.String())
		}
	}
}

func TestHelpListsEveryScenarioAndFlag(t *testing.T) {
	var out bytes.Buffer
	if code := Main([]string{"benchmark", "-help"}, &out, &out); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for _, want := range append(strings.Split(strings.TrimSpace(bench.ScenarioHelp()), "\n"), "-url", "-run", "DLOCK_URL") {
		if !strings.Contains(out.String(), want) {
			t.Errorf("-help lacks %q", want)
		}
	}
}

func TestDLOCKURLIsMeasured(t *testing.T) {
	t.Setenv("DLOCK_URL", "memory:")
	var out, progress bytes.Buffer
	if code := Main([]string{"benchmark", "-for", "500ms"}, &out, &progress); code != exitOK {
		t.Fatalf("exit code %d: %s", code, progress.String())
	}
	if !strings.HasPrefix(out.String(), "Your memory: acquire ") {
		t.Errorf("it printed %s", out.String())
	}
}
