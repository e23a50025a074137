package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestMainUsesTheGivenStreams(t *testing.T) {
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string // each begins with this
	}{
		{"dlock drivers", 0, "DRIVER", ""},
		{"dlock help run", 0, "Run COMMAND", ""},
		{"dlock walk", exitUsage, "", "dlock: "},
		{"dlock run", exitUsage, "", "dlock: "},
		{"", 0, "dlock runs", ""},
	} {
		var stdout, stderr bytes.Buffer
		code := Main(strings.Fields(c.args), strings.NewReader(""), &stdout, &stderr)
		if code != c.code || !begins(stdout.String(), c.stdout) || !begins(stderr.String(), c.stderr) {
			t.Errorf("%q: exit code %d, want %d; stdout %q; stderr %q", c.args, code, c.code, &stdout, &stderr)
		}
	}
}

func begins(s, prefix string) bool {
	return strings.HasPrefix(s, prefix) && (prefix != "" || s == "")
}
