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
	"regexp"
	"strings"
	"testing"
	"time"

	_ "github.com/redlock-go/redlock/drivers/goredis"
	_ "github.com/redlock-go/redlock/drivers/redlock"
)

// TestMain lets more tests run at once: they wait more than they compute.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // the flag exists
	os.Exit(m.Run())
}

// runUntilMeasured runs the program with little time, and again with more if that was too
// little on a busy machine: a run leaves out cases that have not begun when its time is over,
// and a slice that is too short may see no lock. It returns the output of the last run.
func runUntilMeasured(t *testing.T, scenario, only string, complete func(*Report) error) (report *Report, folder, out, progress string) {
	t.Helper()
	for length := 2 * time.Second; ; length *= 4 {
		folder := t.TempDir()
		var out, progress bytes.Buffer
		scenarios, err := Pick(scenario)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Quick: true, For: length, Scenarios: scenarios, Case: regexp.MustCompile(only), Contestant: regexp.MustCompile("^dlock")}
		if err := Run(t.Context(), o, nil, folder, &out, &progress); err != nil {
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
		err = complete(r)
		for _, s := range r.Sections {
			for _, row := range s.Rows {
				if row.Error != "" && row.Kind == Ours { // perhaps the machine stood still
					err = fmt.Errorf("%s, %s, %s: %s", s.Title, row.Case, row.Contestant, row.Error)
				}
			}
		}
		if err == nil {
			return r, folder, out.String(), progress.String()
		}
		if length > 2*time.Minute {
			t.Fatalf("in %v: %v\n%s", length, err, progress.String())
		}
	}
}

func TestAQuickRunWritesAWholeReport(t *testing.T) {
	t.Parallel()
	_, folder, out, progress := runUntilMeasured(t, "single,throughput,handoff", "server, 1 redis-server$|on 1 redis-server, 64|Handing over on 1 redis-server, 2", func(r *Report) error {
		for _, want := range []struct{ scenario, metric string }{
			{"single", pair + " p50"}, {"single", "server CPU"}, {"throughput", "locks"}, {"throughput", "allocations"}, {"handoff", "handoff p50"},
		} {
			if !measured(r, want.scenario, want.metric) {
				return fmt.Errorf("dlock has no %s in %s", want.metric, want.scenario)
			}
		}
		return nil
	})
	for _, name := range []string{"report.html", "report.json"} {
		if !strings.Contains(out, filepath.Join(folder, name)) {
			t.Errorf("the output does not say where %s is: %s", name, out)
		}
	}
	if !strings.Contains(progress, "handoff") {
		t.Errorf("there is no progress: %s", progress)
	}
}

// measured reports whether every row of ours in the scenario has this metric, and above zero.
func measured(r *Report, scenario, name string) bool {
	rows := 0
	for _, s := range r.Sections {
		for _, row := range s.Rows {
			if s.Scenario != scenario || row.Kind != Ours {
				continue
			}
			if m, ok := row.metric(name); !ok || m.Median <= 0 {
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
	scenarios, _ := Pick("single")
	err := Run(ctx, Options{Quick: true, Scenarios: scenarios, Case: regexp.MustCompile("1 redis-server$")}, nil, folder, &out, &out)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if files, _ := os.ReadDir(folder); len(files) > 0 {
		t.Errorf("it wrote %v", files)
	}
}
