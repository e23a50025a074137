package mydriver_test

import (
	"os"
	"strings"
	"testing"
)

// TestThePageIsThisTest: the page's code is that of mydriver_test.go, without its imports.
func TestThePageIsThisTest(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, page, ok := strings.Cut(read("../../../../redlocktest/doc.go"), "// # Test your driver in twenty lines\n")
	page, _, end := strings.Cut(page, "\n// # ")
	var code strings.Builder
	for line := range strings.Lines(page) {
		if line == "//\n" && code.Len() > 0 {
			code.WriteString("\n")
		}
		if text, is := strings.CutPrefix(line, "//\t"); is {
			code.WriteString(text)
		}
	}
	_, test, imported := strings.Cut(read("mydriver_test.go"), "\n)\n\n")
	if !ok || !end || !imported || strings.Trim(code.String(), "\n") != strings.Trim(test, "\n") {
		t.Errorf("the page has\n%s\nand the test\n%s", code.String(), test)
	}
}
