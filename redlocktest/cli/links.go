package cli

import (
	"regexp"
	"strings"
)

var (
	// host matches what may be a server's address in a URL, with the text before it.
	host = regexp.MustCompile(`(?:://|@|,)((?:[\w.-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5})`)
	// remote matches a URL of a server, and not of a file or a socket.
	remote = regexp.MustCompile(`://[^/?]`)
	// encrypted matches a URL whose connections use TLS and verify the server's certificate.
	encrypted = regexp.MustCompile(`\b(rediss|valkeys|etcds|zks)://|\bsslmode=verify|\btls=`)
)

// links returns the positions of the servers' addresses in a URL, or in a list of URLs. If a
// proxy in front of the servers cannot work, it returns the reason.
func links(url string) (servers [][2]int, why string) {
	switch {
	case strings.Contains(url, "topology="):
		return nil, "the servers tell their clients other addresses than those of the URL"
	case encrypted.MatchString(url):
		return nil, "a certificate is for the server's own address, and not for a proxy's"
	}
	for _, m := range host.FindAllStringSubmatchIndex(url, -1) {
		if m[3] == len(url) || strings.IndexByte("/,?", url[m[3]]) >= 0 { // it is no user with a password
			servers = append(servers, [2]int{m[2], m[3]})
		}
	}
	if len(servers) == 0 {
		why = "the URL has no host with a port"
	}
	return servers, why
}

// addresses returns the text at these positions.
func addresses(url string, servers [][2]int) (all []string) {
	for _, s := range servers {
		all = append(all, url[s[0]:s[1]])
	}
	return all
}

// through returns the URL with other addresses at these positions.
func through(url string, servers [][2]int, via []string) string {
	var b strings.Builder
	at := 0
	for i, s := range servers {
		b.WriteString(url[at:s[0]] + via[i])
		at = s[1]
	}
	return b.String() + url[at:]
}
