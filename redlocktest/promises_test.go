package redlocktest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPromisesNameTheirTests: the tests and cases that .github/DESIGN.md names for each promise
// exist, and so do the tests that all.bash names.
func TestPromisesNameTheirTests(t *testing.T) {
	const top = ".."
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	known, text := map[string]bool{}, map[string]string{} // by function: the file
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != top {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		code := read(strings.TrimPrefix(path, top+"/"))
		text[path] = code
		for _, m := range function.FindAllStringSubmatch(code, -1) {
			known[m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		known[g.name+"/*"] = true
		for _, c := range g.cases {
			known[g.name+"/"+c.name] = true
		}
	}
	subtest := func(name string) bool { // a string in the code
		for _, code := range text {
			if strings.Contains(code, `"`+name+`"`) {
				return true
			}
		}
		return false
	}

	_, design, _ := strings.Cut(read(".github/DESIGN.md"), "\n## Promises and tests\n")
	design, _, _ = strings.Cut(design, "\n## ")
	names := 0
	for _, line := range strings.Split(design, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.HasPrefix(cells[1], "--") || cells[1] == " promise " || cells[1] == " rule " || cells[1] == " claim " {
			continue
		}
		found := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1)
		if len(found) == 0 {
			t.Errorf("no test is named for: %s", cells[1])
		}
		for _, m := range found {
			names++
			test, sub, isSub := strings.Cut(m[1], "/")
			if !known[m[1]] && !(isSub && known[test] && subtest(sub)) {
				t.Errorf("there is no %s, which DESIGN.md names for: %s", m[1], cells[1])
			}
		}
	}
	if names < 100 {
		t.Errorf("only %d names were found in DESIGN.md", names)
	}
	for _, m := range regexp.MustCompile(`\^(Test\w+)\$`).FindAllStringSubmatch(read("redlocktest/all.bash"), -1) {
		if !known[m[1]] {
			t.Errorf("there is no %s, which all.bash names", m[1])
		}
	}
}
