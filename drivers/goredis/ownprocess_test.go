package goredis_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/ownprocess"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A logged keeps the lines of go-redis' logger, which all clients of a process share.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Printf(_ context.Context, format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, v...))
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// quoting starts a server that refuses every request, and quotes it, like a server that does not
// know the command.
func quoting(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				for r := bufio.NewReader(c); ; {
					var words, left int
					if _, err := fmt.Fscanf(r, "*%d\r\n", &words); err != nil {
						return
					}
					said := "-ERR this is no server:"
					for range words {
						if _, err := fmt.Fscanf(r, "$%d\r\n", &left); err != nil {
							return
						}
						word := make([]byte, left+2)
						for i := range word {
							word[i], _ = r.ReadByte()
						}
						said += fmt.Sprintf(" %.30s", word[:left])
					}
					_, _ = c.Write([]byte(strings.NewReplacer("\r", "", "\n", "").Replace(said) + "\r\n"))
				}
			}()
		}
	}()
	return l.Addr().String()
}

// Neither an error nor a log shows a password that a server quotes.
func TestAServerThatQuotesAPasswordIsNotRepeated(t *testing.T) {
	ownprocess.Run(t, func(t *testing.T) {
		var lines logged
		redis.SetLogger(&lines)
		addr := quoting(t)
		ask := func(b driver.Backend, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			_, err = b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o", TTL: 5 * time.Second})
			if err == nil || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("got %v", err)
			}
			_ = b.Close()
		}
		for _, url := range []string{"redis://u:s3cr3t@" + addr, "redis://:s3cr3t@" + addr + "?topology=cluster", "redis://u:s3cr3t@" + addr + "?topology=sentinel&master=m&sentinel_password=s3cr3t"} {
			b, err := dlock.OpenBackend(url)
			ask(b, err)
		}
		c := redis.NewClient(&redis.Options{Addr: addr, Username: "u", Password: "s3cr3t"})
		defer func() { _ = c.Close() }()
		b, err := goredis.New(c, nil)
		ask(b, err)
		if strings.Contains(lines.String(), "s3cr3t") {
			t.Errorf("the log says %v", &lines)
		}
	})
}

// An application's log says nothing about a client that works.
func TestABackendOfAWorkingClientLogsNothing(t *testing.T) {
	ownprocess.Run(t, func(t *testing.T) {
		var lines logged
		redis.SetLogger(&lines)
		c := redis.NewClient(&redis.Options{Addr: server.Redis(t).Addr()})
		defer func() { _ = c.Close() }()
		b, err := goredis.New(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		l, err := b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o", TTL: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
		_ = b.Close()
		if said := lines.String(); said != "" {
			t.Errorf("the log says %s", said)
		}
	})
}

// The names of scripts, which are SHA-1 sums, are no cryptography: a process that may use only
// approved algorithms can lock.
func TestAProcessThatMayUseOnlyFIPSLocks(t *testing.T) {
	ownprocess.Run(t, func(t *testing.T) {
		b, err := goredis.Driver{}.Open(&driver.Config{DSN: "redis://" + server.Redis(t).Addr() + "?call_timeout=10s&dial_timeout=10s"})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close() //nolint:errcheck // nothing is under way
		l, err := b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o", TTL: 10e9})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}, "GODEBUG=fips140=only")
}
