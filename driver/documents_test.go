package driver_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Example|Fuzz)\w*)\(`)
	testName   = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w*(?:/[\w-]+)?`)
	suiteGroup = regexp.MustCompile(`\{name: "([\w-]+)",.*cases: (\w+)\}`)
	suiteCase  = regexp.MustCompile(`(?m)^\t\{name: "([\w-]+)"`)
	suiteName  = regexp.MustCompile("`([a-z]+)/([a-z*-]+)`")
	mdLink     = regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)
	mdHeading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notAnchor  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	figure     = regexp.MustCompile(`[\d.]+ (?:µs|ms|s\b|×|[A-Z]\w+ 20\d\d)`)
	mdTag      = regexp.MustCompile(`<[^>]*>`)
	uses       = regexp.MustCompile(`uses: (.*)`)
	pinned     = regexp.MustCompile(`^[\w/-]+@[0-9a-f]{40} # v[\d.]+$`)
)

// TestDocuments checks what the documents and all.bash name: each test, each case of the conformance suite,
// and each file and heading that they link to exists. Markdown wraps at 100 columns.
func TestDocuments(t *testing.T) {
	const root = ".."
	documents, code, cases := map[string]string{}, &strings.Builder{}, map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		isDocument := strings.HasSuffix(path, ".md") || d.Name() == "doc.go" || d.Name() == "all.bash"
		if !isDocument && !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		switch {
		case isDocument:
			documents[path] = string(text)
		case strings.HasSuffix(path, "_test.go"), strings.Contains(filepath.ToSlash(path), "test/"):
			code.Write(text)
		}
		if filepath.Dir(path) == filepath.Join(root, "redlocktest") {
			for list := range strings.SplitSeq(string(text), "\nvar ") {
				name, _, _ := strings.Cut(list, " ")
				cases[name] = list
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, m := range testFunc.FindAllStringSubmatch(code.String(), -1) {
		tests[m[1]] = true
	}
	suite := map[string]bool{}
	for _, m := range suiteGroup.FindAllStringSubmatch(cases["groups"], -1) {
		suite[m[1]+"/*"] = true
		for _, c := range suiteCase.FindAllStringSubmatch(cases[m[2]], -1) {
			suite[m[1]+"/"+c[1]] = true
		}
	}
	for path, text := range documents {
		for _, name := range testName.FindAllString(text, -1) {
			name, sub, _ := strings.Cut(name, "/")
			if !tests[name] && name != "TestSomething" || sub != "" && !strings.Contains(code.String(), `"`+sub+`"`) {
				t.Errorf("%s: there is no test %s %s", path, name, sub)
			}
		}
		if !strings.HasSuffix(path, ".md") {
			continue
		}
		for _, m := range suiteName.FindAllStringSubmatch(text, -1) {
			if suite[m[1]+"/*"] && !suite[m[1]+"/"+m[2]] {
				t.Errorf("%s: the conformance suite has no case %s/%s", path, m[1], m[2])
			}
		}
		for _, m := range mdLink.FindAllStringSubmatch(text, -1) {
			target := path
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(path), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", path, err)
			} else if m[2] != "" && !hasAnchor(documents[target], m[2]) {
				t.Errorf("%s: %s has no heading %s", path, target, m[2])
			}
		}
		if filepath.Base(path) != "CHANGELOG.md" {
			wrapped(t, path, text)
		}
	}
	if n := len(documents[filepath.Join(root, "README.md")]); n > 9<<10 {
		t.Errorf("README has %d bytes, and is for somebody with five minutes: at most 9 KiB", n)
	}
	if len(tests) < 500 || len(suite) < 50 || len(documents) < 15 {
		t.Errorf("%d tests, %d cases and %d documents were found", len(tests), len(suite), len(documents))
	}
}

// TestReadmesFiguresAreOfOneRun checks that the performance page or its picture, which one run of the benchmark
// makes, has each figure of README's section on speed, and its date.
func TestReadmesFiguresAreOfOneRun(t *testing.T) {
	words := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(mdTag.ReplaceAllString(string(text), " ")), " ")
	}
	_, section, _ := strings.Cut(words("../README.md"), "## How fast? ")
	section, _, _ = strings.Cut(section, " ## ")
	page := words("../.github/docs/performance.md") + words("../.github/docs/performance.svg")
	figures := figure.FindAllString(section, -1)
	if len(figures) < 5 {
		t.Errorf("README has the figures %q", figures)
	}
	for _, f := range figures {
		if !strings.Contains(page, " "+f) {
			t.Errorf("the performance page lacks README's %q", f)
		}
	}
}

// TestWorkflowsPinTheirActions checks that each action is named by its commit: a tag can be moved.
func TestWorkflowsPinTheirActions(t *testing.T) {
	text, err := os.ReadFile("../.github/workflows/ci.yml")
	actions := uses.FindAllStringSubmatch(string(text), -1)
	if err != nil || len(actions) == 0 {
		t.Fatal(len(actions), err)
	}
	for _, m := range actions {
		if !pinned.MatchString(m[1]) {
			t.Errorf("%s is not pinned", m[1])
		}
	}
}

// hasAnchor reports whether a heading of the text has this anchor on GitHub.
func hasAnchor(text, anchor string) bool {
	for _, m := range mdHeading.FindAllStringSubmatch(text, -1) {
		if anchor == "#"+strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") {
			return true
		}
	}
	return false
}

// wrapped finds lines that are too long, outside of code and tables.
func wrapped(t *testing.T, path, text string) {
	code := false
	for i, line := range strings.Split(text, "\n") {
		code = code != strings.HasPrefix(line, "```")
		if utf8.RuneCountInString(line) > 100 && !code && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "[![") {
			t.Errorf("%s:%d: over 100 columns", path, i+1)
		}
	}
}

// TestExamples checks that every package that others can import shows how.
func TestExamples(t *testing.T) {
	shown, packages := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		switch folder := filepath.Dir(path); {
		case strings.HasSuffix(path, "_test.go"):
			shown[folder] = shown[folder] || strings.Contains(string(text), "\nfunc Example")
		case !strings.Contains(filepath.ToSlash(path), "/internal/") && !strings.Contains("\n"+string(text), "\npackage main\n"):
			packages[folder] = true
		}
		return err
	})
	if err != nil || len(packages) < 20 {
		t.Fatal(len(packages), err)
	}
	delete(packages, filepath.Join("..", "redlocktest", "trackrecord")) // tests alone
	for folder := range packages {
		if !shown[folder] {
			t.Errorf("%s has no example", folder)
		}
	}
}
