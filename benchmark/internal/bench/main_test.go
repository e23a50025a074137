package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/redlock-go/redlock/drivers/goredis"
	_ "github.com/redlock-go/redlock/drivers/memory"
	_ "github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// TestMain lets this program be one of the processes that wait for locks.
func TestMain(m *testing.M) {
	if os.Getenv(crewVariable) == "" {
		_ = flag.Set("test.parallel", "8") // that flag exists, and the tests wait more than they compute
		os.Exit(m.Run())
	}
	if err := Main(context.Background(), nil, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestWhatIsWrongOnTheCommandLineIsNamed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-fast"}, "-fast"},
		{[]string{"now"}, `"now"`},
		{[]string{"-scenario", "single,doubel"}, `"doubel"`},
		{[]string{"-scenario", "nothing"}, "throughput"},
		{[]string{"-url", "nonsense://host"}, "nonsense"},
		{[]string{"-url", "memory:?speed=9"}, "speed"},
		{[]string{"-url", "memory:", "-scenario", "postgres"}, "single"},
		{[]string{"-url", "memory:", "-peers"}, "-peers"},
		{[]string{"-quick=perhaps"}, "perhaps"},
		{[]string{"-for", "-3s"}, "-3s"},
		{[]string{"-case", "5 (nodes"}, "5 (nodes"},
	} {
		var out, progress bytes.Buffer
		err := Main(context.Background(), c.args, &out, &progress)
		if !errors.Is(err, ErrUsage) {
			t.Errorf("%v: %v, want ErrUsage", c.args, err)
		}
		if !strings.Contains(progress.String(), c.want) {
			t.Errorf("%v: it does not name %s: %s", c.args, c.want, progress.String())
		}
		if out.Len() > 0 {
			t.Errorf("%v: it printed %q", c.args, out.String())
		}
	}
}

func TestHelpListsEveryScenario(t *testing.T) {
	var progress bytes.Buffer
	if err := Main(context.Background(), []string{"-help"}, &progress, &progress); err != nil {
		t.Fatal(err)
	}
	for _, s := range Scenarios() {
		if !strings.Contains(progress.String(), s.Name+" ") || !strings.Contains(progress.String(), s.What) {
			t.Errorf("-help lacks %s: %s", s.Name, s.What)
		}
	}
}

// runUntilMeasured runs the program with a little time, and with more where that was too
// little on a machine that is busy: what has not begun when it is over is left out, and
// nobody may get a lock in a slice that is too short. It returns what the last run printed.
func runUntilMeasured(t *testing.T, args []string, complete func(*Report) error) (report *Report, folder, out, progress string) {
	t.Helper()
	for length := 2 * time.Second; ; length *= 4 {
		folder := t.TempDir()
		var out, progress bytes.Buffer
		all := append(slices.Clone(args), "-quick", "-for", length.String(), "-out", folder)
		if err := Main(context.Background(), all, &out, &progress); err != nil {
			t.Fatalf("%v\n%s", err, progress.String())
		}
		js, err := os.ReadFile(filepath.Join(folder, "report.json"))
		if err != nil {
			t.Fatal(err)
		}
		r := &Report{}
		if err := json.Unmarshal(js, r); err != nil {
			t.Fatal(err)
		}
		for _, s := range r.Sections {
			for _, row := range s.Rows {
				if row.Error != "" {
					t.Errorf("%s, %s, %s: %s", s.Title, row.Case, row.Contestant, row.Error)
				}
			}
		}
		err = complete(r)
		if err == nil || t.Failed() {
			return r, folder, out.String(), progress.String()
		}
		if length > 30*time.Second {
			t.Fatalf("in %v: %v\n%s", length, err, progress.String())
		}
	}
}

func TestAQuickRunOnMemoryWritesAWholeReport(t *testing.T) {
	t.Parallel()
	args := []string{"-url", "memory:", "-scenario", "single,throughput,handoff"}
	_, folder, out, progress := runUntilMeasured(t, args, func(r *Report) error {
		for _, want := range []struct{ scenario, metric string }{
			{"single", pair + " p50"}, {"single", "renew p50"}, {"throughput", "locks"}, {"throughput", "allocations"}, {"handoff", "handoff p50"},
		} {
			if !measured(r, want.scenario, want.metric) {
				return fmt.Errorf("dlock has no %s in %s", want.metric, want.scenario)
			}
		}
		return nil
	})
	for _, name := range []string{"report.html", "report.md"} {
		if !strings.Contains(out, filepath.Join(folder, name)) {
			t.Errorf("the output does not say where %s is: %s", name, out)
		}
	}
	if !strings.Contains(progress, "handoff") {
		t.Errorf("there is no progress: %s", progress)
	}
}

func TestCasesAreChosenByTheirTitle(t *testing.T) {
	t.Parallel()
	var out, progress bytes.Buffer
	args := []string{"-quick", "-for", "1s", "-url", "memory:", "-case", "^Throughput, 1 gor", "-out", t.TempDir()}
	if err := Main(context.Background(), args, &out, &progress); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(progress.String(), " of 1: "); got != 1 || !strings.Contains(progress.String(), "1 of 1: Throughput, 1 goroutine") {
		t.Errorf("progress: %s", progress.String())
	}
	args[6] = "nothing is called so"
	if err := Main(context.Background(), args, &out, &progress); err == nil || !strings.Contains(err.Error(), "no case matches") {
		t.Errorf("error %v", err)
	}
}

func TestADeploymentIsHandedOverBetweenProcesses(t *testing.T) {
	t.Parallel()
	args := []string{"-url", "redis://" + server.Redis(t).Addr(), "-scenario", "handoff"}
	runUntilMeasured(t, args, func(r *Report) error {
		if !measured(r, "handoff", "handoff p50") {
			return errors.New("there are rows without a handoff")
		}
		return nil
	})
}

// measured reports whether every row of ours in the scenario has the metric, above zero.
func measured(r *Report, scenario, name string) bool {
	rows := 0
	for _, s := range r.Sections {
		for _, row := range s.Rows {
			if s.Scenario != scenario || row.Kind != Ours {
				continue
			}
			if m, ok := row.metric(name); !ok || m.Value <= 0 {
				return false
			}
			rows++
		}
	}
	return rows > 0
}

func TestACancelledRunEndsWithoutAReport(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	folder := t.TempDir()
	var out bytes.Buffer
	err := Main(ctx, []string{"-quick", "-url", "memory:", "-out", folder}, &out, &out)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if files, _ := os.ReadDir(folder); len(files) > 0 {
		t.Errorf("it wrote %v", files)
	}
}
