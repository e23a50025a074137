//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/dlock"
)

const canary = "c4n4ry"

// drivers are the drivers of this module.
func drivers() []string {
	return slices.DeleteFunc(dlock.Drivers(), func(name string) bool { return name == "faulty" })
}

// canaryURLs are URLs of a driver with a password in them, well formed and not.
func canaryURLs(scheme string) []string {
	const nobody = "127.0.0.1:1" // where nobody listens
	var urls []string
	for _, rest := range []string{
		"//user:%s@" + nobody + "/0",
		"//:%s@" + nobody,
		"//user:%s@" + nobody + "/0?ttl=10s&prefix=a:",
		"//user:%s@" + nobody + "?nosuch=1",
		"//user:%s@" + nobody + "?ttl=never",
		"//user:%s@" + nobody + ":1:1",
		"//user:%s@" + nobody + "/not-a-number",
		"//user:%s@[::1",
		"//user:a/%s@" + nobody,
		"//user:a@%s@" + nobody,
		"//user:a?%s@" + nobody,
		"//user:a#%s@" + nobody,
		"//user:%%zz%s@" + nobody,
		"//user:a://%s@" + nobody,
		"/user:%s@" + nobody,
		"user:%s@" + nobody,
		"//" + nobody + "/db?user=u&password=%s",
		"//" + nobody + "/db?sslpassword=%s&nosuch=1",
	} {
		urls = append(urls, scheme+":"+fmt.Sprintf(strings.ReplaceAll(rest, "%%", "%%%%"), canary))
	}
	if scheme == "redlock" {
		nodes := drivers()
		if testing.Short() {
			nodes = []string{"redis", "postgres"}
		}
		for _, other := range nodes {
			for _, nodes := range []string{
				"redlock:%[1]s://user:%[2]s@" + nobody + ",%[1]s://" + nobody + ",%[1]s://127.0.0.1:2",
				"redlock:%[1]s://" + nobody + ",%[1]s://u:%[2]s@127.0.0.1:2,nosuch=1",
				"redlock:%[1]s%%3A%%2F%%2Fu%%3A%[2]s%%40127.0.0.1,%[1]s://127.0.0.1:2",
			} {
				urls = append(urls, fmt.Sprintf(nodes, other, canary))
			}
		}
	}
	return urls
}

func TestNoPasswordIsEverWritten(t *testing.T) {
	dir := t.TempDir()
	t.Cleanup(func() { _ = os.RemoveAll("/user:" + canary + "@127.0.0.1:1") }) // a folder by a mistyped file: URL
	n := 0
	try := func(env []string, args ...string) {
		t.Helper()
		run := inside
		if strings.Contains(fmt.Sprint(env, args), "file:") {
			run = outside // it may get the lock
		}
		code, stdout, stderr := run(t, env, args...)
		if strings.Contains(stdout+stderr, canary) {
			t.Errorf("%q %q (exit code %d) writes the password: %s%s", env, args, code, stdout, stderr)
		}
	}
	schemes := append(drivers(), "nosuch", "NoSuch", "")
	if testing.Short() {
		schemes = []string{"redis", "redlock", "postgres", "nosuch", ""} // without a process for each
	}
	for _, scheme := range schemes {
		for _, u := range canaryURLs(scheme) {
			n++
			run := []string{"run", "--verbose", "--wait", "0", fmt.Sprint("k", n), "--", "true"}
			try([]string{envURL + "=" + u}, run...)
			file := filepath.Join(dir, fmt.Sprint("url", n))
			if err := os.WriteFile(file, []byte(u+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			try([]string{envURLFile + "=" + file}, run...)
			try([]string{envURL + "=" + u}, "drivers")
			try(nil, append([]string{"run", "--url", u}, run[1:]...)...)
			try(nil, "run", "--url="+u, "k", "--", "true")
		}
	}
	u := "redis://user:" + canary + "@127.0.0.1:1/0"
	for _, args := range [][]string{
		{u}, {"run", u}, {"run", u, "--", "true"}, {"run", "k", u, "--", "true"}, {"drivers", u}, {"version", u}, {"help", u},
		{"run", "--ulr=" + u, "k", "--", "true"}, {"run", "--" + u, "k"}, {"run", "-u" + u}, {"run", "-" + u}, {"--url", u},
		{"run", "--ttl", u, "k", "--", "true"}, {"run", "--wait=" + u, "k", "--", "true"}, {"run", "--label", u, "k", "--", "true"},
		{"run", "--ttl", ":" + canary + "@h", "k", "--", "true"}, {"run", "-" + canary, "k"}, {"run", "--=" + canary, "k"},
		{"run", "k", "--", u}, {"run", "k", "--", "./" + u}, {"completion", u}, {"completion", "bash", u},
	} {
		try([]string{envURL + "=file://" + dir + "/locks"}, args...)
	}
}

func TestAPasswordOnTheCommandLineIsRefused(t *testing.T) {
	env := []string{envURL + "=file://" + t.TempDir()}
	for _, u := range []string{
		"redis://user:pw@h:6379/0", "redis://s3cr3t@h", "redis://h?pwd=s3cr3t", "postgres://h/db?user=u&password=pw",
		"redlock:redis://a:6379,redis://u:pw@b:6379,redis://c:6379", "redlock:redis%3A%2F%2Fu%3Apw%40h,redis://b",
	} {
		for _, args := range [][]string{{"--url", u}, {"--url=" + u}} {
			args = append(append([]string{"run", "--wait", "0"}, args...), "k", "--", "true")
			if code, _, stderr := inside(t, env, args...); code != exitUsage || !strings.Contains(stderr, envURL) || !strings.Contains(stderr, envURLFile) {
				t.Errorf("%s: exit code %d, stderr is %q: it must say where the URL may stand", u, code, stderr)
			}
		}
	}
	// Without a password no URL is refused, and no argument of the command.
	try(t, env, "", []use{{"run user:x@y -- true", 0, "", ""}, {"run https://example.org/a -- true", 0, "", ""}, {"run k -- true redis://user:pw@h", 0, "", ""}})
}

func TestTheURLIsNotInTheListOfProcesses(t *testing.T) {
	t.Parallel()
	if !allSeen {
		t.Skip("there is no /proc here")
	}
	w := newFaultyWorld(t)
	w.url = "faulty://user:" + canary + "@h/" + w.dir
	p := w.start("run", "k", "--", "sh", "-c", "cat /proc/$PPID/cmdline /proc/$PPID/environ /proc/$$/environ > list; cat /proc/$PPID/comm; echo > done; exec sleep 60")
	w.content("done")
	list, err := os.ReadFile(w.path("list"))
	if err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(list)+string(ours), canary) {
		t.Error("the password is in a command line, or in the environment of the guard or the command")
	}
	eventually(t, "the guard's name", func() bool { return strings.HasSuffix(p.out.String(), "\n") })
	if got := p.out.String(); got != guardName+"\n" {
		t.Errorf("the guard is called %q", got)
	}
	_ = p.Process.Kill() // and the rest with it
}
