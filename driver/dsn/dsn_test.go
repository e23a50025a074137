package dsn

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

func TestEveryParameterIsAskedForOrNamed(t *testing.T) {
	p := Query("timeout=150ms&n=3&on=off&kind=b&name=a%26b")
	if d := p.Duration("timeout", 0, time.Millisecond); d != 150*time.Millisecond {
		t.Errorf("timeout = %v", d)
	}
	if n := p.Int("n", 0, 1, 9); n != 3 {
		t.Errorf("n = %d", n)
	}
	if p.Bool("on", true) {
		t.Error("on = true")
	}
	if k := p.Enum("kind", "a", "a", "b"); k != "b" {
		t.Errorf("kind = %q", k)
	}
	if s := p.String("absent", "def"); s != "def" {
		t.Errorf("absent = %q", s)
	}
	err := p.Err()
	var bad *driver.InvalidError
	if !errors.As(err, &bad) || bad.What != `parameter "name"` {
		t.Fatalf("an unasked parameter: got %v", err)
	}
	if s := p.String("name", ""); s != "a&b" {
		t.Errorf("name = %q", s)
	}
	if err := p.Err(); err != nil {
		t.Errorf("all asked for: %v", err)
	}
}

func TestBadValuesNameTheParameterAndNeverTheValue(t *testing.T) {
	const canary = "s3cr3t"
	for _, q := range []string{
		"d=" + canary, "d=1us", "i=" + canary, "i=10", "b=" + canary, "e=" + canary,
		"d=%zz" + canary, "d=1s&d=2s", "x=1@" + canary, "x#" + canary, "%2f" + canary + "=1", canary + "/=1",
	} {
		p := Query(q)
		p.Duration("d", 0, time.Millisecond)
		p.Int("i", 0, 1, 9)
		p.Bool("b", false)
		p.Enum("e", "x", "x", "y")
		err := p.Err()
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", q, err)
			continue
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("%q: the error quotes the value: %v", q, err)
		}
	}
}

func TestParse(t *testing.T) {
	u, err := Parse("x+y://al%40ice:p%3Aw@one,two:7,[::1]:8/a%20b/c?ttl=1s", "2379", "z", "x+y")
	if err != nil {
		t.Fatal(err)
	}
	if u.User != "al@ice" || u.Password != "p:w" || u.Path != "/a b/c" || u.Params.String("ttl", "") != "1s" ||
		strings.Join(u.Hosts, " ") != "one:2379 two:7 [::1]:8" || u.String() != "x+y://one:2379,two:7,[::1]:8/a b/c" {
		t.Errorf("got %+v", u)
	}
	if u, err := Parse("z://", "1", "z"); err != nil || u.Hosts[0] != "localhost:1" || u.Path != "" {
		t.Errorf("z:// is %+v, %v", u, err)
	}
	if u, err := Parse("z://a%2Cb:2", "1", "z"); err != nil || strings.Join(u.Hosts, " ") != "a:1 b:2" {
		t.Errorf("with an encoded comma: %+v, %v", u, err)
	}
	for _, bad := range []string{
		"", "z", "z:", "z:host", "z://a%zz", "z://u:pw%40host", "y://host", "z://host:0", "z://host:65536", "z://host:1:2", "z://[::1", "z://[x]:1", "z://[::1]x", "z://a,,b",
		"z://a b", "z://pw%zz@host", "z://host/%zz", "z://u:p/w@host", "z://host#x", "z://host/\n", "z://:1",
	} {
		if u, err := Parse(bad, "1", "z"); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("Parse of %q: %+v, %v", bad, u, err)
		}
	}
}

func TestTLSNeedsItsScheme(t *testing.T) {
	for _, name := range []string{"ca", "cert", "key", "server_name", "insecure"} {
		p := Query(name + "=true")
		if c := p.TLS(false); c != nil || !errors.Is(p.Err(), driver.ErrInvalid) || !strings.Contains(p.Err().Error(), name) {
			t.Errorf("%s without TLS: %v", name, p.Err())
		}
	}
	p := Query("")
	if c := p.TLS(false); c != nil || p.Err() != nil {
		t.Errorf("without TLS: %v, %v", c, p.Err())
	}
	p = Query("server_name=db&insecure=on")
	if c := p.TLS(true); p.Err() != nil || c.ServerName != "db" || !c.InsecureSkipVerify {
		t.Errorf("with TLS: %+v, %v", c, p.Err())
	}
	for _, bad := range []string{"ca=/does/not/exist", "cert=/does/not/exist", "cert=a&key=b"} {
		p := Query(bad)
		p.TLS(true)
		if err := p.Err(); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "/does") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestLocalPathsOfEachSystem(t *testing.T) {
	for _, c := range []struct {
		goos, path, want string
		ok               bool
	}{
		{"linux", "/var/lock", "/var/lock", true},
		{"linux", "/C:/locks", "/C:/locks", true},
		{"linux", "var/lock", "var/lock", false},
		{"linux", "", "", false},
		{"windows", "/C:/locks/app", "C:/locks/app", true},
		{"windows", "C:/locks/app", "C:/locks/app", true},
		{"windows", `C:\locks\app`, `C:\locks\app`, true},
		{"windows", `/c:\locks`, `c:\locks`, true},
		{"windows", "/C:/", "C:/", true},
		{"windows", "/C:locks", "C:locks", false},
		{"windows", "/C:", "C:", false},
		{"windows", "/var/lock", "var/lock", false},
		{"windows", "//server/share", "/server/share", false},
		{"windows", "/1:/locks", "1:/locks", false},
		{"windows", "", "", false},
	} {
		if got, ok := localPath(c.goos, c.path); got != c.want || ok != c.ok {
			t.Errorf("on %s %q is %q, %v, want %q, %v", c.goos, c.path, got, ok, c.want, c.ok)
		}
	}
}
