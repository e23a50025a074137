package printable

import "testing"

func TestText(t *testing.T) {
	for s, want := range map[string]string{
		"":                         "",
		`plain "text" \ and ü`:     `plain "text" \ and ü`,
		"\x1b[2J\x1b]0;x\a":        `\x1b[2J\x1b]0;x\a`,
		"a\nb\r\tc\x7f":            `a\nb\r\tc\x7f`,
		"C1 \u009b31m, bidi\u202e": `C1 \u009b31m, bidi\u202e`,
		"bytes \xff\xfe":           `bytes \xff\xfe`,
		"replaced \ufffd":          "replaced \ufffd",
	} {
		if got := Text(s); got != want {
			t.Errorf("%q is %s, want %s", s, got, want)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for want, args := range map[string][]string{
		"redis-cli -p 6379 CONFIG SET appendonly yes": {"redis-cli", "-p", "6379", "CONFIG", "SET", "appendonly", "yes"},
		"chmod +t '/a b' ''":                          {"chmod", "+t", "/a b", ""},
		`x 'it'\''s' '$(id)' '~a*' '&b' ';'`:          {"x", "it's", "$(id)", "~a*", "&b", ";"},
	} {
		if got := CommandLine(args...); got != want {
			t.Errorf("%q is %s, want %s", args, got, want)
		}
	}
}
