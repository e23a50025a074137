package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// asCommand in the environment makes this binary the command. It starts itself again, as a client
// in a process of its own.
const asCommand = "REDLOCK_TEST_AS_REDLOCKTEST"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestEveryDriver runs cases and a stress under a URL of each driver. Of the schemes that open the
// same driver, for TLS or a socket, one is enough.
func TestEveryDriver(t *testing.T) {
	if testing.Short() {
		t.Skip("starts ten servers")
	}
	nodes := make([]string, 3)
	for i := range nodes {
		nodes[i] = server.Redis(t).URL()
	}
	pg, mysql := server.Postgres(t), server.MariaDB(t).URL()+"?setup=true"
	urls := []string{
		"memory:", "file://" + filepath.ToSlash(t.TempDir()), "sqlite://" + filepath.ToSlash(t.TempDir()) + "/locks.db?setup=true",
		server.Redis(t).URL(), strings.Replace(server.Valkey(t).URL(), "redis://", "valkey://", 1), "redlock:" + strings.Join(nodes, ",") + ",bootstrap=true",
		pg.URL(), strings.Replace(pg.URL(), "postgres://", "pgtable://", 1) + "&setup=true",
		mysql, strings.Replace(mysql, "mysql://", "mariadb://", 1) + "&table=other",
		"zk://" + strings.Join(server.ZooKeeper(t, 1).Addrs(), ","), "etcd://" + strings.Join(server.Etcd(t, 1).Addrs(), ","),
		"nats://" + strings.Join(server.NATS(t, 1).Addrs(), ","),
	}
	if server.HasConsul() {
		urls = append(urls, "consul://"+strings.Join(server.Consul(t, 1).Addrs(), ","))
	}
	other := regexp.MustCompile(`\+unix$|^(rediss|valkeys|postgresql|etcds|zks|tls|consuls?|both)$`) // both is two of them
	for _, scheme := range dlock.Drivers() {
		if !other.MatchString(scheme) && !slices.ContainsFunc(urls, func(u string) bool { return strings.HasPrefix(u, scheme+":") }) {
			t.Errorf("no URL has the driver %s", scheme)
		}
	}
	for _, url := range urls {
		scheme, _, _ := strings.Cut(url, ":")
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "--quiet", "--short", "--stress", "1s")
			for _, group := range strings.Fields("request verdict expiry cancel wait watch node shared operator close leak link history") {
				cmd.Args = append(cmd.Args, "--skip", group)
			}
			cmd.Env = append(os.Environ(), asCommand+"=1", "GORACE=atexit_sleep_ms=0", "REDLOCKTEST_URL="+url)
			said, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			out, lines := string(said), []string{`open/parameters +ok`, `process/exclude +ok`, `Stress: \d+ operations`, `ok$`}
			if scheme == "memory" {
				lines[1] = `All clients were in this process:`
			}
			for _, line := range lines {
				if !regexp.MustCompile("(?m)^" + line).MatchString(out) {
					t.Errorf("no line begins with %s", line)
				}
			}
			if err != nil || strings.Contains(out, "this command knows it only") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
