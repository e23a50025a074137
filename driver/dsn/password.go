package dsn

import (
	"net/url"
	"regexp"
	"strings"
)

// node matches the beginning of a URL, alone or in a list.
var node = regexp.MustCompile(`(?:^|,|^redlock:)[a-z0-9+._-]+://`)

// secretParameter is a parameter whose value is a password: password, sslpassword,
// sentinel_password…
var secretParameter = regexp.MustCompile(`(?i)passw(?:or)?d=.`)

// HasPassword reports whether a URL, or one in a list of URLs, holds a password. It also reads
// malformed URLs, and returns true in doubt.
func HasPassword(u string) bool {
	decoded, err := url.PathUnescape(u)
	return holdsPassword(u) || err == nil && holdsPassword(decoded)
}

func holdsPassword(u string) bool {
	if secretParameter.MatchString(u) {
		return true
	}
	for _, n := range node.Split(u, -1) {
		_, after, ok := strings.Cut(n, ":")
		if ok && strings.LastIndexByte(after, '@') > 0 {
			return true
		}
	}
	return false
}
