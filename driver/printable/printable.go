// Package printable has text for people: what somebody else chose, so that it disturbs no terminal
// and no log, command lines, and rounded durations.
package printable

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Text returns text that somebody else chose, such as a key, the value of a foreign lock or
// a server's error, so that it cannot disturb a terminal or a line of a log: it escapes, as a Go
// string does, control characters, line breaks, characters that change the direction of text,
// and bytes that are not UTF-8.
func Text(s string) string {
	var b strings.Builder
	kept := 0 // where the text begins that is not in b yet
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		bad := r == utf8.RuneError && size == 1
		if bad || !strconv.IsPrint(r) {
			b.WriteString(s[kept:i])
			quoted := strconv.Quote(s[i : i+size])
			b.WriteString(quoted[1 : len(quoted)-1])
			kept = i + size
		}
		i += size
	}
	if kept == 0 {
		return s
	}
	b.WriteString(s[kept:])
	return b.String()
}

// Line returns an error's text in one line, and escapes it as Text does: pgx has a line for each
// address that it tried, the same for each try, and a server's text may have any characters.
func Line(s string) string {
	if !strings.Contains(s, "\n") {
		return Text(s)
	}
	var lines []string
	for line := range strings.SplitSeq(s, "\n") {
		line = strings.TrimSpace(line)
		if n := len(lines); line != "" && (n == 0 || !strings.HasSuffix(lines[n-1], line)) {
			lines = append(lines, line)
		}
	}
	return Text(strings.Join(lines, "; "))
}

// CommandLine returns a command line for a POSIX shell, with each argument quoted that must be:
// the form of a driver.Diagnostic's Command. The arguments may hold names from a server.
func CommandLine(args ...string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%="
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = arg
		if arg == "" || strings.Trim(arg, plain) != "" {
			quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// Duration rounds a duration for people: to seconds from ten seconds on, to tenths below that, and
// then to milliseconds or microseconds.
func Duration(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}
