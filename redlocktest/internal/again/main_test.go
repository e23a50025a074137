package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestMain lets the test binary serve as the program that go test -exec starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "repeat" {
		repeatMain(os.Args[2:])
	}
	os.Exit(m.Run())
}

func lines(events ...event) string {
	var b strings.Builder
	for _, e := range events {
		line, _ := json.Marshal(e)
		b.Write(append(line, '\n'))
	}
	return b.String()
}

// events returns the events of go test -json for tests of one package that failed with these
// outputs. Subtests fail their parent, which says nothing.
func events(pkg string, failed map[string]string) string {
	var b strings.Builder
	for test, output := range failed {
		b.WriteString(lines(event{"run", pkg, test, ""}))
		for line := range strings.Lines("=== RUN   " + test + "\n" + output) {
			b.WriteString(lines(event{"output", pkg, test, line}))
		}
		b.WriteString(lines(event{"output", pkg, test, "--- FAIL: " + test + " (1.00s)\n"}, event{"fail", pkg, test, ""}))
	}
	return b.String() + end(pkg)
}

func end(pkg string) string {
	return lines(event{"output", pkg, "", "FAIL\n"}, event{"output", pkg, "", "exit status 1\n"},
		event{"output", pkg, "", "FAIL\t" + pkg + "\t1.004s\n"}, event{"fail", pkg, "", ""})
}

// What Go 1.26.8 wrote when goroutines of a bubble received from due timers with -race; timer has
// only the lines that matter.
const (
	check = `ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346 "((exiting || thr->fast_state.epoch() == kEpochLast)) != (0)" (0x0, 0x0) (tid=18633)` + "\n"
	dump  = `unexpected fault address 0x7ffe351ce6c8
fatal error: fault
runtime: g 2169: unexpected return pc for runtime.sigpanic called from 0xc0001e4000
stack: frame={sp:0x7ffe351ce5d0, fp:0x7ffe351ce630} stack=[0xc000341000,0xc000342000)
fatal error: unsafe.Slice: len out of range
panic during panic

goroutine 2169 gp=0xc0001a92c0 m=0 mp=0x7d4440 [running, synctest bubble 381]:
`
	timer = `SIGSEGV: segmentation violation
PC=0x4b4b1a m=0 sigcode=1 addr=0x8

goroutine 9 gp=0xc0001a92c0 m=0 mp=0x7d4440 [running, synctest bubble 1]:
runtime.(*timer).maybeRunChan(0xc0000a2040, 0xc0000a2000)
`
)

// crashed returns the events of a package that ended in TestB, after this output.
func crashed(pkg, before, report string) string {
	var b strings.Builder
	b.WriteString(lines(event{"run", pkg, "TestB", ""}))
	for line := range strings.Lines("=== RUN   TestB\n" + before + report) {
		b.WriteString(lines(event{"output", pkg, "TestB", line}))
	}
	return b.String() + lines(event{"output", pkg, "", "FAIL\t" + pkg + "\t1.004s\n"}, event{"fail", pkg, "", ""})
}

const (
	slow   = "    a_test.go:34: Lock: 0 of 3 nodes granted: redis://127.0.0.1:1/0: no answer within 209ms\n"
	logged = "    log.go:98: the end of the log of redis-server at 127.0.0.1:1:\n        two holders, a token leaks\n"
)

func TestWhatIsRunAgain(t *testing.T) {
	for name, c := range map[string]struct {
		failed map[string]string
		more   string // events
		want   string // the tests to run again, or a part of the error
	}{
		"late":                   {failed: map[string]string{"TestA": slow}, want: "p.TestA"},
		"a wrong answer":         {failed: map[string]string{"TestA": "    a_test.go:3: got 3, want 4\n"}, want: "p.TestA"},
		"silent":                 {failed: map[string]string{"TestA": ""}, want: "p.TestA"},
		"in a subtest":           {failed: map[string]string{"TestA": logged, "TestA/b/c": "    " + slow}, want: "p.TestA"},
		"in three subtests":      {failed: map[string]string{"TestA/b": "    " + slow, "TestA/c": "    " + slow, "TestA/d": slow}, want: "p.TestA"},
		"words in a log":         {failed: map[string]string{"TestA": slow + logged}, want: "p.TestA"},
		"words in a name":        {failed: map[string]string{"TestTokens": "    token_leak_test.go:7: got 3\n        found at redlocktest/leak.go:4\n"}, want: "p.TestTokens"},
		"words of a passed part": {failed: map[string]string{"TestA": slow}, more: lines(event{"run", "p", "TestA/b", ""}, event{"output", "p", "TestA/b", "    b.go:4: two holders\n"}, event{"pass", "p", "TestA/b", ""}), want: "p.TestA"},
		"words of another test":  {failed: map[string]string{"TestA": slow}, more: lines(event{"run", "p", "TestB", ""}, event{"output", "p", "TestB", "panic: x\n"}, event{"pass", "p", "TestB", ""}), want: "p.TestA"},
		"of two packages":        {failed: map[string]string{"TestA": slow}, more: events("q", map[string]string{"TestA": slow}), want: "p.TestA q.TestA"},
		"one of two runs":        {failed: map[string]string{"TestA": slow}, more: lines(event{"run", "p", "TestB", ""}, event{"pass", "p", "TestB", ""}, event{"output", "p", "", "PASS\n"}, event{"output", "p", "", "ok  \tp\t1.004s\n"}, event{"pass", "p", "", ""}), want: "p.TestA"},
		"five":                   {failed: map[string]string{"TestA": slow, "TestB": slow, "TestC": slow, "TestD": slow, "TestE": slow}, want: "p.TestA p.TestB p.TestC p.TestD p.TestE"},

		"six":                      {failed: map[string]string{"TestA": slow, "TestB": slow, "TestC": slow, "TestD": slow, "TestE": slow, "TestF": slow}, want: "6 tests failed"},
		"evidence beside":          {failed: map[string]string{"TestA": slow + "    a_test.go:3: two holders\n"}, want: "no bad luck explains this: two holders"},
		"evidence in a subtest":    {failed: map[string]string{"TestA": slow, "TestA/b": "        a_test.go:3: token 5 after 7\n"}, want: "no bad luck explains this: token 5"},
		"evidence in a later line": {failed: map[string]string{"TestA": "    a_test.go:3: failed:\n        3 goroutines are left\n"}, want: "no bad luck explains this: failed"},
		"a data race":              {failed: map[string]string{"TestA": slow + "==================\nWARNING: DATA RACE\n"}, want: "DATA RACE"},
		"a race in a passed part":  {failed: map[string]string{"TestA": slow}, more: lines(event{"run", "p", "TestA/b", ""}, event{"output", "p", "TestA/b", "WARNING: DATA RACE\n"}, event{"pass", "p", "TestA/b", ""}), want: "DATA RACE"},
		"a panic":                  {failed: map[string]string{"TestA": slow + "panic: x [recovered]\n"}, want: "panic: x"},
		"out of time":              {failed: map[string]string{"TestA": slow}, more: lines(event{"run", "q", "TestB", ""}, event{"output", "q", "TestB", "panic: test timed out after 20m0s\n"}, event{"fail", "q", "", ""}), want: "q.TestB did not finish"},
		"no end":                   {failed: map[string]string{"TestA": slow}, more: lines(event{"fail", "q", "TestB", ""}), want: "q did not finish"},
		"a build":                  {failed: map[string]string{"TestA": slow}, more: lines(event{"build-fail", "q", "", ""}), want: "does not build"},
		"a TestMain":               {failed: map[string]string{"TestA": slow}, more: end("q"), want: "q failed, and none of its tests did"},
		"a TestMain beside":        {failed: map[string]string{"TestA": slow}, more: lines(event{"output", "p", "", "found unexpected goroutines\n"}), want: "wrote outside of its tests: found unexpected"},
		"another exit status":      {failed: map[string]string{"TestA": slow}, more: lines(event{"output", "p", "", "exit status 66\n"}), want: "exit status 66"},
		"nothing":                  {want: "0 tests failed"},

		"a crash of the runtime":           {more: crashed("q", "", dump), want: "q as a whole"},
		"a crash of the race detector":     {more: crashed("q", "", check), want: "q as a whole"},
		"a crash in a timer":               {more: crashed("q", "", timer), want: "q as a whole"},
		"a failure beside a crash":         {failed: map[string]string{"TestA": slow}, more: crashed("q", "", dump), want: "q as a whole p.TestA"},
		"a failure before a crash":         {more: crashed("q", slow+"--- FAIL: TestB (1.00s)\n", dump), want: "q as a whole q.TestB"},
		"evidence before a crash":          {more: crashed("q", "    a_test.go:3: two holders\n", check), want: "no bad luck explains this: two holders"},
		"a race before a crash":            {more: crashed("q", "WARNING: DATA RACE\n", dump), want: "DATA RACE"},
		"a crash of another kind":          {more: crashed("q", "", "fatal error: all goroutines are asleep - deadlock!\n"), want: "q.TestB did not finish"},
		"a nil pointer in the code tested": {more: crashed("q", "", "panic: runtime error: invalid memory address or nil pointer dereference\n[signal SIGSEGV: segmentation violation]\n"), want: "q.TestB did not finish"},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			text := c.more
			if c.failed != nil {
				text = events("p", c.failed) + text
			}
			failures, crashed, err := parse(strings.NewReader(text), true)
			for _, pkg := range crashed {
				names = append(names, pkg+" as a whole")
			}
			for _, f := range failures {
				if !f.crashed {
					names = append(names, f.pkg+"."+f.test)
				}
				if e := f.evidence(func(e entry) bool { return e.file == "log.go" }); e != "" {
					names = append(names, "no bad luck explains this: "+e)
				}
			}
			got := strings.Join(names, " ")
			if err != nil {
				got = err.Error()
			}
			if repeated := strings.HasPrefix(c.want, "p.") || strings.HasPrefix(c.want, "q as"); repeated && got != c.want || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestEvidence has sentences of this repository's tests.
func TestEvidence(t *testing.T) {
	for _, text := range []string{
		"two holders: {} and {}", "slot 3 of 4 has two holders", "at most 5 holders in 70 grants", "two hold it", "round 3: 2 winners", "a second owner beside the first, whose value is whole",
		"3 of 100 have the lock of \"k\" at once, with tokens 1 and 2 among theirs", "%d processes had the lock at once, some overlapped", "a holds the lock together with another",
		"the next owner was granted 3ms before the lease's Expires", "the holder's process was killed, and the next owner was granted 1s before the end of its lease", "freed before its end",
		"key \"k\" was granted while another's lease had 3s to go", "granted to another with 3s to go", "a held key was granted", "Close granted a key that is held", "Renew after Release took the key again: nil",
		"granted while the lease that is cut off has 3s to go", "the Release of a lease that was over freed the next owner's lock", "the lock is free before the minimum hold is over",
		"client 1 believes that it has the lock, and client 2 has it: x", "process 3 had the lock 2ms before process 4 gave it", "Renew succeeded for a lease that was over, while another owner has the key", "slots were shared: 3",
		"two clients have it", "two clients held the lock at once, 3 times", "2 of 100 were granted", "the session granted its own lock again: <nil>", "granted, and the server has \"x\"", "another client holds the lock through the pooler, got <nil>, want ErrHeld",
		"Renew succeeded after the lease had expired and another owner had the key", "the TTL is 1s and the grace 500ms, and the key came free after 1.1s",
		"no order of 12 calls explains their answers", "G1: a lease was returned 1ms after its end", "expiry/free: x\n\tfound at redlocktest/expiry.go:7\n\tbreaks exclusion: while a lease has not expired, no other owner gets the lock",
		"x\n\tbreaks rule 6: no reentrancy. The same process asking twice is two owners", "x\n\tbreaks rule 7: no goroutine, connection or key remains after Close", "x\n\tbreaks linearizability: some order",
		"token 5 after 7", "2 tokens did not rise", "got nil, want ErrStale: stale", "found unexpected goroutines", "4 goroutines are left", "3 descriptors are left", "the key is left", "left of key \"k\": [a]",
		"Close left a node open that Open had opened: nil", "the process outlives Close", "the grandchild lives on", "the connection is still open", "some of the command survive", "the connections grow with every 60 attempts that are cancelled, to 70",
		"the password is in \"x\"", "the secret is shown: x", "race detected during execution of test", "WARNING: DATA RACE", "panic: runtime error", "fatal error: concurrent map writes",
	} {
		if !evidence.MatchString(text) {
			t.Errorf("no evidence: %s", text)
		}
	}
	for _, text := range []string{
		"Lock: 0 of 3 nodes granted: redis://127.0.0.1:1/0: no answer within 209ms", "context deadline exceeded", "got held by web-4/7 for 3s, want nil", "the next holder: context deadline exceeded",
		"key \"k\" is free, and was not granted before the case's time was over", "a lease was not released before the case's time was over: EOF", "x\n\tbreaks rule 5: of a hundred attempts on a free key exactly one wins; held is said only if one other owner has it",
		"exit code 75, stderr: dlock: timed out", "/tmp/TestATokenLeaks123/001: no such file", "taken out, and nothing noticed in 20 schedules", "1 winners and 1 unknown outcomes, want one and none", "0 of 100 were granted", "the session granted its own lock again: context deadline exceeded", "the lock of a holder that is cut off does not come free", "it ended at once: exit status 1",
	} {
		if m := evidence.FindString(text); m != "" {
			t.Errorf("%q is evidence: %s", m, text)
		}
	}
}

func TestLogsAreToldFromFailuresByTheirSource(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	source := "package p\nfunc TestA(t *testing.T) {\n\tt.Logf(\"%d tokens\", 7)\n\tt.Error(\"token 7 after 8\")\n}\n"
	for _, file := range []string{"p/a_test.go", "q/helper.go"} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := &failure{pkg: module + "/p", test: "TestA"}
	for e, want := range map[entry]bool{
		{file: "a_test.go", line: 3}: true, {file: "a_test.go", line: 4}: false, {file: "a_test.go", line: 1490}: false,
		{file: "helper.go", line: 3}: true, {file: "helper.go", line: 4}: false, {file: "nowhere.go", line: 3}: false,
	} {
		if got := f.loggedInSource(e); got != want {
			t.Errorf("%s:%d is a log: %t", e.file, e.line, got)
		}
	}
}

// TestPlanted is what TestARepeatedFailureFails repeats. It counts its runs in a file, and fails
// in each second, third or so, as it is told.
func TestPlanted(t *testing.T) {
	every, _ := strconv.Atoi(os.Getenv("REDLOCK_TEST_FAIL_EVERY"))
	if every == 0 {
		return
	}
	file := os.Getenv("REDLOCK_TEST_RUNS")
	text, _ := os.ReadFile(file)
	if err := os.WriteFile(file, append(text, '.'), 0o600); err != nil {
		t.Fatal(err)
	}
	if (len(text)+1)%every == 0 {
		t.Error("told so")
	}
}

func TestAPackageThatGoCrashedIsRunAgain(t *testing.T) {
	t.Chdir(filepath.Join("..", "..", "..")) // where all.bash runs it
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	for pkg, want := range map[string]string{
		"/drivers/internal/redisnode/names": "FAILED ONCE, then passed as a whole: ", // it imports little
		"/redlocktest/internal/nowhere":     "",
	} {
		file := filepath.Join(t.TempDir(), "events")
		if err := os.WriteFile(file, []byte(crashed(module+pkg, "", dump)), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := again(file, []string{"-race", "-short"}, &out); (err == nil) != (want != "") || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, with the output %q", pkg, err, out.String())
		}
	}
}

func TestARepeatedFailureFails(t *testing.T) {
	t.Chdir(filepath.Join("..", "..", "..")) // where all.bash runs it
	pkg := module + "/redlocktest/internal/again"
	for name, c := range map[string]struct {
		said  string
		every int    // the planted test fails every so many runs
		runs  int    // of the planted test
		want  string // the beginning of the output
		err   string
	}{
		"once":           {"    a_test.go:3: told so\n", 1000, maxRuns, "FAILED ONCE, then passed 10 runs alone: " + pkg + ".TestPlanted: told so\n", ""},
		"each third run": {"    a_test.go:3: told so\n", 3, 3, "", "failed again after 2 runs alone"},
		"evidence":       {"    a_test.go:3: two holders\n", 1000, 0, "", "no bad luck explains this: two holders"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, runs := filepath.Join(dir, "events"), filepath.Join(dir, "runs")
			t.Setenv("REDLOCK_TEST_FAIL_EVERY", strconv.Itoa(c.every))
			t.Setenv("REDLOCK_TEST_RUNS", runs)
			if err := os.WriteFile(file, []byte(events(pkg, map[string]string{"TestPlanted": c.said})), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := again(file, []string{"-short"}, &out)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if !strings.Contains(out.String(), c.want) || c.want != "" && !strings.Contains(out.String(), "--- FAIL: TestPlanted") {
				t.Errorf("the output is %q", out.String())
			}
			if made, _ := os.ReadFile(runs); len(made) != c.runs {
				t.Errorf("%d runs, want %d", len(made), c.runs)
			}
		})
	}
}
