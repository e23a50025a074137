package cli

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// opener opens URLs by the drivers that are registered.
type opener struct{}

func (opener) Open(c *driver.Config) (driver.Backend, error) {
	if c.Prefix == "" {
		return dlock.OpenBackend(c.DSN)
	}
	sep := "?"
	switch {
	case isList(c.DSN):
		sep = ","
	case strings.Contains(c.DSN, "?"):
		sep = "&"
	}
	return dlock.OpenBackend(c.DSN + sep + "prefix=" + url.QueryEscape(c.Prefix))
}

// isList reports whether a URL has a list of URLs, between whose commas parameters may stand.
func isList(u string) bool {
	_, list, _ := strings.Cut(u, ":")
	return !strings.HasPrefix(list, "//") && strings.Contains(list, "://")
}

// prefixOfURL and prefixOfList match the parameter prefix of a URL, and of a list of URLs.
var prefixOfURL, prefixOfList = regexp.MustCompile(`([?&])prefix=([^&]*)&?`), regexp.MustCompile(`([:,])prefix=([^,]*),?`)

// cutPrefix takes the parameter prefix out of a URL.
func cutPrefix(u string) (rest, prefix string) {
	parameter := prefixOfURL
	if isList(u) {
		parameter = prefixOfList
	}
	at := parameter.FindStringSubmatchIndex(u)
	if at == nil {
		return u, ""
	}
	prefix, err := url.QueryUnescape(u[at[4]:at[5]])
	if err != nil {
		return u, "" // opening it says so
	}
	rest = u[:at[3]] + u[at[1]:]
	return strings.TrimRight(rest, "?&,"), prefix
}

// userPassword and passwordParameter match the password in a URL, or in a list of URLs.
var (
	userPassword      = regexp.MustCompile(`://[^/?#@:]*:([^/?#]+)@`)
	passwordParameter = regexp.MustCompile(`(?i)passw(?:or)?d=([^&,]+)`)
)

// secretOf returns a password of a URL that an error's text has only if it quotes the password.
// It returns "" for one that may stand there by chance: a short one, a word, a number, or one
// that the rest of the URL has too.
func secretOf(u string) string {
	const least = 8
	other := func(r rune) bool { return !unicode.IsLetter(r) }
	for _, at := range slices.Concat(userPassword.FindAllStringSubmatchIndex(u, -1), passwordParameter.FindAllStringSubmatchIndex(u, -1)) {
		password, err := url.PathUnescape(u[at[2]:at[3]])
		mixed := strings.ContainsFunc(password, unicode.IsLetter) && strings.ContainsFunc(password, other)
		if err == nil && len(password) >= least && mixed && !strings.Contains(u[:at[2]], password) && !strings.Contains(u[at[3]:], password) {
			return password
		}
	}
	return ""
}
