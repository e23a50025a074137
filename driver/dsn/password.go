package dsn

import (
	"net/url"
	"regexp"
	"strings"
)

// node matches the beginning of a URL, alone or in a list.
var node = regexp.MustCompile(`(?:^|,|^redlock:)([a-z0-9+._-]+)://`)

// loneUser matches the schemes of servers that know no user without a password: a name alone,
// before the host, is a password whose colon was forgotten.
var loneUser = regexp.MustCompile(`^(?:rediss?|valkeys?|redis\+unix|valkey\+unix|etcds?|zks?)$`)

// secretParameter is a parameter whose value is a password, or is meant to be one: password,
// sslpassword, sentinel_password, and the ways in which it is misspelt. (A passfile names a file.)
var secretParameter = regexp.MustCompile(`(?i)(?:pas+(?:w[a-z]*|[a-z]*d|phrase)?|ps?w[a-z]*|secret|token)=.`)

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
	schemes := node.FindAllStringSubmatch(u, -1)
	for i, n := range node.Split(u, -1) {
		_, after, ok := strings.Cut(n, ":")
		if ok && strings.LastIndexByte(after, '@') > 0 {
			return true
		}
		if i > 0 && loneUser.MatchString(schemes[i-1][1]) && strings.LastIndexByte(n, '@') > 0 {
			return true
		}
	}
	return false
}
