package ownprocess

import (
	"os"
	"os/exec"
	"strings"
	"testing"
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
			switch t.Log("it runs, short:", testing.Short(), os.Getenv("ADDED")); how {
			case "skips":
				t.Skip("there is no server")
			case "fails":
				t.Error("it is broken")
			}
			t.Run("part", func(t *testing.T) {})
		}, "ADDED=x")
	})
}

// A test in a process of its own ends as it does there, and the flags apply to it.
func TestATestIsToldAsItEndsInItsProcess(t *testing.T) {
	t.Parallel()
	for how, says := range map[string]string{
		"passes": "it runs, short: true x", "skips": "--- SKIP: TestSample/in_(brackets) (", "fails": "it is broken",
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSample$", "-test.v", "-test.short")
		cmd.Env = append(os.Environ(), sample+"="+how)
		out, err := cmd.CombinedOutput()
		if (err != nil) != (how == "fails") || !strings.Contains(string(out), says) {
			t.Errorf("%s: it ends with %v and does not say %q:\n%s", how, err, says, out)
		}
	}
}
