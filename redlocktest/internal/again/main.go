// Command again runs once more, with nothing beside them, the tests that failed because time
// ran out on a busy machine:
//
//	again EVENTS FLAG...
//
// EVENTS is the file of what `go test -json` wrote, and the FLAGs are those of go test. It is for
// redlocktest/all.bash. The exit status is 0 only if nothing else failed, and those that did pass
// now. A wrong answer (two holders, a leak, a data race, another error) is never run again.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

const (
	module = "github.com/redlock-go/redlock"
	// most is how many tests may be run again: if more fail there is another cause.
	most = 3
)

// event is what test2json writes.
type event struct {
	Action, Package, Test, Output string
}

var (
	// framing is what the testing package writes around a test's own lines.
	framing = regexp.MustCompile(`^\s*(===|---) |^\s*$`)
	// entry begins an entry of t.Log, t.Error and the like; the lines that follow are indented more.
	entry = regexp.MustCompile(`^( +)\S+\.go:\d+: `)
	// late are the words of the drivers for an answer that did not come in time.
	late = regexp.MustCompile(`no answer within|not answer in time|no answer in time|deadline exceeded|i/o timeout|the machine is too busy`)
	// log is an entry with the log of a server, which the tests print if they fail.
	log = regexp.MustCompile(`: the end of the log of `)
	// wrong is what no shortage of time excuses.
	wrong = regexp.MustCompile(`(?i)two holders|second holder|overlap|leak|goroutines? |left behind|are left|stale|token|data race|panic`)
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: again EVENTS FLAG...")
		os.Exit(2)
	}
	if err := again(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "again:", err)
		os.Exit(1)
	}
}

func again(file string, flags []string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	tests, err := ranOutOfTime(f)
	if err != nil {
		return err
	}
	// Some tests skip what takes too long under the race detector, and all.bash runs them without it
	// as well: either may have failed.
	ways := [][]string{flags}
	if slices.Contains(flags, "-race") {
		ways = append(ways, slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return f == "-race" }))
	}
	var names []string
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		names = append(names, tests[pkg]...)
		for _, flags := range ways {
			args := append(append([]string{"test"}, flags...), "-count=1", "-run=^("+strings.Join(tests[pkg], "|")+")$", ".")
			c := exec.Command("go", args...)
			c.Dir, c.Stdout, c.Stderr = "."+strings.TrimPrefix(pkg, module), os.Stdout, os.Stderr
			if err := c.Run(); err != nil {
				return fmt.Errorf("%s: failed again, alone: %w", pkg, err)
			}
		}
	}
	fmt.Printf("%d TESTS RAN OUT OF TIME beside others and passed alone: %s\n", len(names), strings.Join(names, ", "))
	return nil
}

// ranOutOfTime returns the top-level tests that failed, by package. It is an error if any of them
// failed for another reason than time, or if anything else failed.
func ranOutOfTime(events io.Reader) (tests map[string][]string, err error) {
	output := map[[2]string]*strings.Builder{}
	failed := map[[2]string]bool{}
	broken := map[string]bool{} // packages that failed
	tests = map[string][]string{}
	n := 0
	for d := json.NewDecoder(events); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		id := [2]string{e.Package, e.Test}
		switch e.Action {
		case "output":
			if output[id] == nil {
				output[id] = &strings.Builder{}
			}
			output[id].WriteString(e.Output)
		case "fail":
			if e.Test == "" {
				broken[e.Package] = true
				continue
			}
			failed[id] = true
			if !strings.Contains(e.Test, "/") {
				tests[e.Package] = append(tests[e.Package], e.Test)
				n++
			}
		case "build-fail":
			return nil, errors.New("a package does not build")
		}
	}
	if n == 0 || n > most {
		return nil, fmt.Errorf("%d tests failed: up to %d are run again", n, most)
	}
	for pkg := range broken {
		if len(tests[pkg]) == 0 {
			return nil, fmt.Errorf("%s failed, and none of its tests did", pkg)
		}
	}
	blamed := map[[2]string]bool{} // top-level tests one of whose entries says that time ran out
	for id := range failed {
		var text string
		if output[id] != nil {
			text = output[id].String()
		}
		timely, err := judge(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", id[1], err)
		}
		top, _, _ := strings.Cut(id[1], "/")
		id[1] = top
		blamed[id] = blamed[id] || timely
	}
	for pkg, names := range tests {
		if !broken[pkg] {
			return nil, fmt.Errorf("%s did not come to its end", pkg)
		}
		for _, name := range names {
			if !blamed[[2]string{pkg, name}] {
				return nil, fmt.Errorf("%s does not say why it failed", name)
			}
		}
	}
	return tests, nil
}

// judge reports whether the output of a test that failed says that time ran out. It is an error if
// it says anything else, except for what servers logged.
func judge(output string) (timely bool, err error) {
	var entries []string
	indent := ""
	for line := range strings.Lines(output) {
		m := entry.FindStringSubmatch(line)
		switch {
		case m != nil:
			indent = m[1] + " "
			entries = append(entries, line)
		case framing.MatchString(line):
		case len(entries) > 0 && strings.HasPrefix(line, indent):
			entries[len(entries)-1] += line
		default:
			return false, fmt.Errorf("it wrote %q", line)
		}
	}
	for _, e := range entries {
		switch {
		case log.MatchString(e):
		case !late.MatchString(e) || wrong.MatchString(e):
			return false, fmt.Errorf("it is no matter of time: %s", strings.TrimSpace(e))
		default:
			timely = true
		}
	}
	return timely, nil
}
