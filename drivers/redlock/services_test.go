package redlock_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// refusedByServices are the commands that managed services refuse: see the table in doc.go.
var refusedByServices = strings.Fields("acl bgrewriteaof bgsave client cluster command config debug failover lastsave migrate module monitor object psync replicaof role save shutdown slaveof sync")

var commandStat = regexp.MustCompile(`cmdstat_([^:|]+)`)

// Locks work on every managed service that documents which commands it refuses: nodes that are
// opened by URL use none of these commands to take, await, renew or release a lock. (Check uses
// some, and works without them.)
func TestLocksUseNoCommandThatServicesRefuse(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"redis", "valkey"} {
		for _, guard := range []string{"restart_guard=off", "restart_guard=30s,bootstrap=true"} {
			t.Run(scheme+"/"+guard, func(t *testing.T) {
				if testing.Short() && guard == "restart_guard=off" {
					t.Skip("short: with the guard there are more commands")
				}
				c := start(t, 3)
				url := strings.NewReplacer("redis://", scheme+"://", "valkey://", scheme+"://").Replace(c.url(everyNode, guard, calm))
				client, err := dlock.OpenURL(url)
				drivertest.Must(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				held, err := client.Lock(ctx, "k")
				drivertest.Must(t, err)
				other, err := dlock.OpenURL(url)
				drivertest.Must(t, err)
				waited := make(chan error)
				go func() {
					l, err := other.Lock(ctx, "k")
					if err == nil {
						err = l.Unlock()
					}
					waited <- err
				}()
				renew := func() error {
					return held.Raw(func(l driver.Lease) error {
						_, err := l.Renew(ctx, &driver.Renewal{TTL: dlock.DefaultTTL})
						return err
					})
				}
				for err := renew(); err != nil; err = renew() { // a busy machine may answer late
					if held.Err() != nil || ctx.Err() != nil {
						t.Fatal(err)
					}
				}
				for waiting := false; !waiting; { // waits until the waiter has subscribed
					for _, s := range c.servers {
						waiting = waiting || used(t, s)["subscribe"]
					}
					if err := ctx.Err(); err != nil {
						t.Fatal("the other client does not wait")
					}
				}
				if err := held.Unlock(); err != nil {
					t.Error(err)
				}
				if err := <-waited; err != nil {
					t.Error(err)
				}
				if err := client.Close(); err != nil {
					t.Error(err)
				}
				if err := other.Close(); err != nil {
					t.Error(err)
				}
				for _, s := range c.servers {
					commands := used(t, s)
					if !commands["evalsha"] {
						t.Errorf("%s was not used at all: %v", s.Addr(), commands)
					}
					for _, name := range refusedByServices {
						if commands[name] {
							t.Errorf("%s was asked for %s, which services refuse", s.Addr(), strings.ToUpper(name))
						}
					}
				}
			})
		}
	}
}

// used returns the commands that a server received.
func used(t *testing.T, s *server.Server) map[string]bool {
	t.Helper()
	reply, err := s.Do("INFO", "commandstats")
	drivertest.Must(t, err)
	commands := map[string]bool{}
	for _, m := range commandStat.FindAllStringSubmatch(fmt.Sprint(reply), -1) {
		commands[m[1]] = true
	}
	return commands
}
