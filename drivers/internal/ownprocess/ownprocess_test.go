package ownprocess

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// sample tells TestSample how it ends; without it TestSample does nothing.
const sample = "REDLOCK_TEST_SAMPLE"

func TestSample(t *testing.T) {
	how := os.Getenv(sample)
	if how == "" {
		return
	}
	t.Run("in (brackets)", func(t *testing.T) {
		Run(t, func(t *testing.T) {
			if how == "skips" {
				t.Skip("there is no server")
			}
			end, _ := t.Deadline()
			t.Logf("short: %t, added: %s, left: %v", testing.Short(), os.Getenv("ADDED"), time.Until(end).Round(time.Hour))
			t.Run("silent", func(*testing.T) {})
			t.Run("loud", func(t *testing.T) {
				if t.Log("it runs"); how == "fails" {
					t.Error("it is broken")
				}
			})
		}, "ADDED=x")
	})
}

// A test in a process of its own ends as it does there, and the flags apply to it.
func TestATestIsToldAsItEndsInItsProcess(t *testing.T) {
	t.Parallel()
	const name = "TestSample/in_(brackets)"
	for how, c := range map[string]struct {
		flags       []string
		says, hides string
		fails       bool
	}{
		"passes":        {[]string{"-test.v"}, "it runs", "--- FAIL", false},
		"is short":      {[]string{"-test.v", "-test.short"}, "short: true, added: x, left: ", "", false},
		"is long":       {[]string{"-test.v", "-test.short=false", "-test.timeout=100h"}, "short: false, added: x, left: 90h0m0s", "", false},
		"runs one part": {[]string{"-test.v", "-test.run=^TestSample$/in/silent"}, "--- PASS: " + name + "/silent", "it runs", false},
		"skips a part":  {[]string{"-test.v", "-test.skip=^TestSample$/in/loud"}, "--- PASS: " + name + "/silent", "it runs", false},
		"says little":   {nil, "PASS", "TestSample", false},
		"skips":         {[]string{"-test.v"}, "    --- SKIP: " + name + " (", "it runs", false},
		"fails":         {nil, "it is broken", "silent", true},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestSample$"}, c.flags...)...)
			cmd.Env = append(os.Environ(), sample+"="+how)
			b, err := cmd.CombinedOutput()
			out := string(b)
			if (err != nil) != c.fails {
				t.Errorf("it ends with %v", err)
			}
			if !strings.Contains(out, c.says) || c.hides != "" && strings.Contains(out, c.hides) {
				t.Errorf("it does not say %q, or says %q:\n%s", c.says, c.hides, out)
			}
		})
	}
}
