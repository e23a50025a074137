package dsn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/redlock-go/redlock/driver"
)

// A URL is the address of servers: scheme://user:password@host1:port,host2:port/path?parameters.
type URL struct {
	Scheme string
	// User and Password are percent-decoded. Empty means that the URL has none.
	User, Password string
	// Hosts are "host:port", percent-decoded, at least one; localhost where the URL names none.
	Hosts []string
	// Path is percent-decoded, and begins with '/' unless it is empty.
	Path string
	// Params are the parameters. Ask for each of them, then call Params.Err.
	Params *Params

	_ struct{}
}

// Parse reads a URL of one of these schemes. A host without a port gets port.
func Parse(raw, port string, schemes ...string) (*URL, error) {
	scheme, rest, _ := strings.Cut(raw, ":")
	rest, slashes := strings.CutPrefix(rest, "//")
	if !slashes || !slices.Contains(schemes, scheme) {
		return nil, driver.Invalid("URL", "must begin with %s://", strings.Join(schemes, ":// or "))
	}
	if strings.ContainsFunc(rest, func(r rune) bool { return r == '#' || r < ' ' || r == 0x7f }) {
		return nil, driver.Invalid("URL", "contains a bare '#' or a control character (in a password write %%23 for '#')")
	}
	rest, query, _ := strings.Cut(rest, "?")
	u := &URL{Scheme: scheme, Params: Query(query)}
	authority, path, hasPath := strings.Cut(rest, "/")
	if strings.Contains(path, "@") {
		return nil, driver.Invalid("URL", "has an '@' after the first '/' (in a user or password write %%2F for '/', and %%40 for '@' in a path)")
	}
	if hasPath {
		decoded, err := url.PathUnescape("/" + path)
		if err != nil {
			return nil, driver.Invalid("URL", "path is not percent-encoded correctly")
		}
		u.Path = decoded
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, password, _ := strings.Cut(authority[:at], ":")
		var err1, err2 error
		u.User, err1 = url.PathUnescape(user)
		u.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return nil, driver.Invalid("URL", "user or password is not percent-encoded correctly (write %%25 for '%%')")
		}
		authority = authority[at+1:]
	}
	if authority == "" {
		authority = "localhost"
	}
	hosts, err := url.PathUnescape(authority) // in a list of URLs the commas between hosts are encoded
	for host := range strings.SplitSeq(hosts, ",") {
		addr, ok := hostPort(host, port)
		if err != nil || !ok {
			return nil, driver.Invalid("URL", "host is not of the form name, name:port or [IPv6]:port (in a user or password percent-encode '/' as %%2F, '?' as %%3F and '@' as %%40)")
		}
		u.Hosts = append(u.Hosts, addr)
	}
	return u, nil
}

// String returns the URL without user, password and parameters.
func (u *URL) String() string { return u.Scheme + "://" + strings.Join(u.Hosts, ",") + u.Path }

// hostPort adds the port if there is none. It refuses text that may be a part of a password.
func hostPort(s, port string) (string, bool) {
	host := s
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 || net.ParseIP(s[1:end]) == nil {
			return "", false
		}
		host = s[1:end]
		if s[end+1:] != "" && s[end+1] != ':' {
			return "", false
		}
		if s[end+1:] != "" {
			port = s[end+2:]
		}
	} else if name, number, ok := strings.Cut(s, ":"); ok {
		host, port = name, number
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 || host == "" {
		return "", false
	}
	if !strings.HasPrefix(s, "[") && strings.Trim(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != "" {
		return "", false
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), true
}

// TLS reads the parameters of a connection with TLS: ca, a file of PEM certificates to trust
// instead of the system's; cert and key, files of the client's certificate; server_name, the
// name to expect in the server's certificate; and insecure, which verifies nothing. It reads
// the files. Where the connection has no TLS (on is false) it returns nil, and each of these
// parameters is an error of Err.
func (p *Params) TLS(on bool) *tls.Config {
	ca, cert, key := p.String("ca", ""), p.String("cert", ""), p.String("key", "")
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.String("server_name", "")}
	c.InsecureSkipVerify = p.Bool("insecure", false)
	if !on {
		for _, name := range []string{"ca", "cert", "key", "server_name", "insecure"} {
			if p.Has(name) {
				p.fail(driver.Invalid(label(name), "is for TLS, which the URL does not ask for"))
			}
		}
		return nil
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			p.fail(driver.Invalid(label("ca"), "cannot be read: %v", reason(err)))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			p.fail(driver.Invalid(label("ca"), "holds no PEM certificate"))
		}
	}
	if (cert == "") != (key == "") {
		p.fail(driver.Invalid("parameters \"cert\" and \"key\"", "belong together: give both or none"))
	} else if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			p.fail(driver.Invalid("parameters \"cert\" and \"key\"", "are no certificate with its key: %v", reason(err)))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// reason removes the path from a file's error, because the path is a parameter's value.
func reason(err error) error {
	if e := (*os.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// LocalPath returns the absolute path that a URL of this machine names: path is what follows its
// scheme and "//", percent-decoded. On Windows file:///C:/folder names C:/folder, and so does
// file://C:/folder (with slashes of either kind), because programs join "file://" and a path. ok is
// false if the path is not absolute.
func LocalPath(path string) (local string, ok bool) { return localPath(runtime.GOOS, path) }

func localPath(goos, path string) (local string, ok bool) {
	if goos != "windows" {
		return path, strings.HasPrefix(path, "/")
	}
	local = strings.TrimPrefix(path, "/")
	return local, drive.MatchString(local)
}

// drive finds the drive of an absolute path of Windows.
var drive = regexp.MustCompile(`^[A-Za-z]:[/\\]`)
