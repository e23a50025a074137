// Command again repeats, alone, the tests that failed in a run beside others:
//
//	again EVENTS FLAG...
//
// EVENTS is the file that `go test -json` wrote, and the FLAGs are flags of go test.
// redlocktest/all.bash uses it. Up to five top-level tests are repeated, each ten times (fewer
// times if it is long, but at least three), with FLAGs, and if these have -race as often without
// it. The exit status is 0 only if every repetition passes. Nothing is repeated, and the status is
// 1, if the output of a failed test has evidence that no bad luck explains (two owners, a token
// that does not rise, a leak, a secret, a data race, a panic), or if anything but a test failed: a
// build, a TestMain, a package that ran out of time.
//
// Go's own runtime can crash under the race detector: two goroutines of one synctest bubble that
// receive from due timers at the same time share a context of the detector (unlockAndRun in
// runtime/time.go). That says nothing about the code under test. A package that such a crash ended
// is run once more as a whole, without the tests that match the environment's AGAIN_SKIP. What
// failed in it before the crash is judged as ever.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	module = "github.com/redlock-go/redlock"
	// most is how many tests may be repeated: if more fail there is another cause than luck.
	most = 5
	// A test is repeated maxRuns times. All tests together take about limit, but each is
	// repeated at least minRuns times.
	maxRuns, minRuns = 10, 3
	limit            = 3 * time.Minute
)

func main() {
	if len(os.Args) > 3 && os.Args[1] == "repeat" {
		repeatMain(os.Args[2:])
	}
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: again EVENTS FLAG...")
		os.Exit(2)
	}
	if err := again(os.Args[1], os.Args[2:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "again:", err)
		os.Exit(1)
	}
}

func again(file string, flags []string, out io.Writer) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // the file was only read
	failures, crashed, err := parse(f, slices.Contains(flags, "-race"))
	if err != nil {
		return err
	}
	for _, f := range failures {
		if e := f.evidence(f.loggedInSource); e != "" {
			return fmt.Errorf("%s.%s: no bad luck explains this: %s", f.pkg, f.test, e)
		}
	}
	// Some tests skip slow parts under the race detector, and all.bash runs them without it
	// too: either run may have failed.
	ways := [][]string{flags}
	if slices.Contains(flags, "-race") {
		ways = append(ways, slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return f == "-race" }))
	}
	for _, pkg := range crashed {
		c := exec.Command("go", slices.Concat([]string{"test"}, flags, []string{"-count=1", "-timeout=30m", "-skip=" + cmp.Or(os.Getenv("AGAIN_SKIP"), "^$"), "."})...)
		c.Dir, c.Stdout, c.Stderr = (&failure{pkg: pkg}).dir(), out, out
		if err := c.Run(); err != nil {
			return fmt.Errorf("%s failed again as a whole, after Go's runtime had crashed under it: %w", pkg, err)
		}
		say(out, "FAILED ONCE, then passed as a whole: %s: Go's runtime crashed under the race detector\n", pkg)
	}
	share := limit / time.Duration(max(1, len(failures)*len(ways)))
	for _, f := range failures {
		if f.crashed {
			continue // the whole package was run again
		}
		passed := 0
		for _, flags := range ways {
			n, err := f.repeat(flags, share, out)
			passed += n
			if err != nil {
				return fmt.Errorf("%s.%s failed again after %d runs alone: %w", f.pkg, f.test, passed, err)
			}
		}
		say(out, "FAILED ONCE, then passed %d runs alone: %s.%s: %s\n%s", passed, f.pkg, f.test, f.cause(f.loggedInSource), f.text())
	}
	return nil
}

func say(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }

// repeat runs the test alone in its package, and returns how often it passed. go test builds the
// test binary once, and starts this program's repeatMain in place of it.
func (f *failure) repeat(flags []string, share time.Duration, out io.Writer) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "again")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	count := filepath.Join(dir, "count")
	args := slices.Concat([]string{"test"}, flags, []string{
		"-count=1", "-timeout=10m", "-run=^" + f.test + "$", fmt.Sprintf("-exec='%s' repeat '%s' %v", self, count, share), "."})
	c := exec.Command("go", args...)
	c.Dir, c.Stdout, c.Stderr = f.dir(), out, out
	failed := c.Run()
	text, err := os.ReadFile(count)
	if err != nil {
		return 0, cmp.Or(failed, err)
	}
	n, err := strconv.Atoi(string(text))
	return n, cmp.Or(failed, err)
}

// repeatMain runs a program: args are the file that it writes the number of successful runs to,
// after how much time it stops, and the program with its arguments. It ends at the first failure.
func repeatMain(args []string) {
	err := func() error {
		share, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		for start, n := time.Now(), 0; n < maxRuns && (n < minRuns || time.Since(start) < share); {
			c := exec.Command(args[2], args[3:]...)
			c.Stdout, c.Stderr = os.Stdout, os.Stderr
			if err := c.Run(); err != nil {
				return err
			}
			n++
			if err := os.WriteFile(args[0], []byte(strconv.Itoa(n)), 0o600); err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "again:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// event is a line that test2json writes.
type event struct {
	Action, Package, Test, Output string
}

// A failure is a top-level test that failed.
type failure struct {
	pkg, test string
	parts     []*part // the test and its subtests, in the order in which they began
	crashed   bool    // it did not fail, but ended with its package, under which Go's runtime crashed
}

// A part is a test or a subtest.
type part struct {
	name   string
	failed bool
	output strings.Builder
}

var (
	// crash matches what only a crash of Go's runtime or of the race detector itself writes, and
	// crashStart the lines that such a report may begin with.
	crash      = regexp.MustCompile(`^(ThreadSanitizer: CHECK failed: |runtime: g ?\d+: unexpected return pc|fatal error: traceback did not unwind|runtime\.\(\*timer\)\.maybeRunChan\()`)
	crashStart = regexp.MustCompile(`(?m)^(ThreadSanitizer: |runtime: |unexpected fault |fatal error: |SIGSEGV: )`)
	// packageLine matches what testing and go test write about a package one of whose tests
	// failed, perhaps in one of two runs, as all.bash makes. A panic and a data race outside of a
	// test have another exit status.
	packageLine = regexp.MustCompile(`^(|PASS|FAIL|FAIL\t.*|ok  \t.*|exit status 1)\s*$`)
	// framing matches lines that the testing package writes around a test's own lines.
	framing = regexp.MustCompile(`^\s*(=== |--- |$)`)
	// entryStart begins an entry of t.Log, t.Error and the like. The lines that follow are
	// indented more.
	entryStart = regexp.MustCompile(`^( +)(\S+\.go):(\d+): `)
	// position matches positions in source files, whose names prove nothing.
	position = regexp.MustCompile(`\S+\.go:\d+`)
	logCall  = regexp.MustCompile(`\.Logf?\(`)
)

// evidence matches failures that no lack of time and no accident of scheduling excuses.
var evidence = regexp.MustCompile(`(?i)` + strings.Join([]string{
	// Two owners, also as the suite's rules and the simulation's properties call it.
	`\b(two|second|both|several|[2-9]|\d\d+) (\w+ )?(holders?|owners?|winners|leaders)\b`,
	`\b(two|both|\d+) (\w+ )?(hold|have the lock|had the lock|share)\b`, `\btwo clients (have|held)\b`, `\b([2-9]|\d\d+) of \d+ were granted`, `more than \d+ holders`,
	`\boverlap`, `\bbeside\b`, `not alone`, `lead alone`, `together with another`,
	`another's lease`, `(granted|given) to another`, `granted while`, `held key was granted`, `key that is held`, `took the key again`,
	`another (owner )?has\b`, `believes that it has`, `had the (lock|key)`, `its own lock again: <nil>`, `<nil>, want ErrHeld`, `granted, and the server has`, `freed the (next|lock before)`, `is free before`, `came free after`, `were shared`,
	`before (the |its |a )(\w+ )*(lease|end\b|expires)`, `before (keep|expires)\b`,
	`exclusion:`, `no reentrancy`, `linearizab`, `no order of`, `\bG[1-4]:`, `honesty:`,
	// Tokens that do not rise.
	`\btokens?\b`, `\bstale\b`,
	// Leaks.
	`\bleak`, `\bgoroutines?\b`, `\bdescriptors?\b`, `\b(is|are|was|were) left\b`, `\bleft (behind|open|of key|an?|the lock)\b`,
	`\boutlives?\b`, `\blives on\b`, `\bsurvives?\b`, `still (open|there|running)`, `connections grow`,
	// Secrets.
	`secret`, `s3cret`, `password`, `canary`,
	// Crashes.
	`data race`, `race detected`, `\bpanic`, `fatal error`, `sigsegv`, `nil pointer`,
}, "|"))

// parse returns the top-level tests that failed, and with the race detector the packages under
// which Go's runtime crashed. It is an error if there are none or too many, or if anything else
// failed.
func parse(events io.Reader, race bool) (failures []*failure, crashed []string, _ error) {
	tests := map[[2]string]*failure{} // by package and name
	unfinished := map[event]bool{}
	broken, odd := map[string]bool{}, map[string]string{} // packages that failed, and what they wrote
	for d := json.NewDecoder(events); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, err
		}
		if race && e.Action == "output" && crash.MatchString(e.Output) && !slices.Contains(crashed, e.Package) {
			crashed = append(crashed, e.Package)
		}
		id := event{Package: e.Package, Test: e.Test}
		switch e.Action {
		case "build-fail":
			return nil, nil, errors.New("a package does not build")
		case "run":
			unfinished[id] = true
		case "pass", "skip", "fail":
			delete(unfinished, id)
		}
		if e.Test == "" {
			broken[e.Package] = broken[e.Package] || e.Action == "fail"
			if e.Action == "output" && !packageLine.MatchString(e.Output) {
				odd[e.Package] += e.Output
			}
			continue
		}
		top, _, _ := strings.Cut(e.Test, "/")
		key := [2]string{e.Package, top}
		if tests[key] == nil {
			tests[key] = &failure{pkg: e.Package, test: top}
		}
		p := tests[key].part(e.Test)
		p.failed = p.failed || e.Action == "fail"
		p.output.WriteString(e.Output)
	}
	for id := range unfinished {
		if slices.Contains(crashed, id.Package) {
			top, _, _ := strings.Cut(id.Test, "/")
			tests[[2]string{id.Package, top}].part(id.Test).failed = true
			continue
		}
		return nil, nil, fmt.Errorf("%s.%s did not finish", id.Package, id.Test)
	}
	maps.DeleteFunc(tests, func(_ [2]string, f *failure) bool {
		return !slices.ContainsFunc(f.parts, func(p *part) bool { return p.failed })
	})
	count := 0
	for _, f := range tests {
		if slices.Contains(crashed, f.pkg) {
			f.cut()
		}
		if !f.crashed {
			count++
		}
	}
	if count+len(crashed) == 0 || count > most {
		return nil, nil, fmt.Errorf("%d tests failed: up to %d are run again", count, most)
	}
	explained := map[string]bool{}
	for _, f := range tests {
		explained[f.pkg] = true
		if !broken[f.pkg] {
			return nil, nil, fmt.Errorf("%s did not finish", f.pkg)
		}
	}
	for pkg, failed := range broken {
		switch {
		case !failed, slices.Contains(crashed, pkg):
		case !explained[pkg]:
			return nil, nil, fmt.Errorf("%s failed, and none of its tests did", pkg)
		case odd[pkg] != "":
			return nil, nil, fmt.Errorf("%s failed, and wrote outside of its tests: %s", pkg, odd[pkg])
		}
	}
	return slices.SortedFunc(maps.Values(tests), func(a, b *failure) int {
		return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.test, b.test))
	}), crashed, nil
}

// cut removes the report of the crash that ended the package. If the test had not failed before,
// it only ended with the package.
func (f *failure) cut() {
	f.crashed = true
	for _, p := range f.parts {
		text := p.output.String()
		if i := crashStart.FindStringIndex(text); i != nil {
			text = text[:i[0]]
			p.output.Reset()
			p.output.WriteString(text)
		}
		f.crashed = f.crashed && !strings.Contains(text, "--- FAIL: ")
	}
}

func (f *failure) part(name string) *part {
	if i := slices.IndexFunc(f.parts, func(p *part) bool { return p.name == name }); i >= 0 {
		return f.parts[i]
	}
	f.parts = append(f.parts, &part{name: name})
	return f.parts[len(f.parts)-1]
}

func (f *failure) dir() string { return "." + strings.TrimPrefix(f.pkg, module) }

// text returns the output of the parts that failed.
func (f *failure) text() string {
	var b strings.Builder
	for _, p := range f.parts {
		if p.failed {
			b.WriteString(p.output.String())
		}
	}
	return b.String()
}

// An entry is what one call of t.Error, t.Log and the like wrote, or a line that no such call
// wrote; that has no file.
type entry struct {
	file, text string
	line       int
}

// entries splits a part's output.
func (p *part) entries() (all []entry) {
	indent := ""
	for line := range strings.Lines(p.output.String()) {
		m := entryStart.FindStringSubmatch(line)
		switch {
		case m != nil:
			indent = m[1] + " "
			n, _ := strconv.Atoi(m[3])
			all = append(all, entry{m[2], strings.TrimPrefix(line, m[0]), n})
		case framing.MatchString(line):
		case indent != "" && strings.HasPrefix(line, indent):
			all[len(all)-1].text += line
		default:
			indent = ""
			all = append(all, entry{text: line})
		}
	}
	return all
}

// failures returns what the failed parts say about their failure: all entries but those of t.Log,
// and of the parts that passed the lines that no entry has, such as a report of the race detector.
func (f *failure) failures(logged func(entry) bool) (all []string) {
	for _, p := range f.parts {
		for _, e := range p.entries() {
			if e.file == "" || p.failed && !logged(e) {
				all = append(all, strings.TrimSpace(e.text))
			}
		}
	}
	return all
}

// evidence returns what no bad luck explains.
func (f *failure) evidence(logged func(entry) bool) string {
	for _, text := range f.failures(logged) {
		if evidence.MatchString(position.ReplaceAllString(text, "")) {
			return text
		}
	}
	return ""
}

// cause returns the first line of the first failure.
func (f *failure) cause(logged func(entry) bool) string {
	for _, text := range f.failures(logged) {
		first, _, _ := strings.Cut(text, "\n")
		return first
	}
	return "it does not say why"
}

// loggedInSource reports whether the source has a call of t.Log or t.Logf at the entry's position.
// The file is in the test's package, or has the same name elsewhere in the repository.
func (f *failure) loggedInSource(e entry) bool {
	files := []string{filepath.Join(f.dir(), e.file)}
	if _, err := os.Stat(files[0]); err != nil {
		files = nil
		_ = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == e.file {
				files = append(files, path)
			}
			return nil
		})
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, _ := os.ReadFile(file)
		lines := bytes.Split(text, []byte("\n"))
		return e.line <= len(lines) && logCall.Match(lines[e.line-1])
	})
}
