package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/redlock"
)

// reads takes the lock as a reader, as soon as the nodes let it.
func (c *cluster) reads(b driver.Backend, key string, ttl time.Duration) (l driver.Lease) {
	c.t.Helper()
	c.until(func() (err error) {
		req := ask(key, ttl)
		req.Mode = driver.Shared
		l, err = b.Acquire(context.Background(), req)
		return err
	})
	return l
}

// readers returns the owners whom node i has as readers of the key.
func (c *cluster) readers(i int, key string) (owners []string) {
	c.t.Helper()
	members, _ := c.do(i, "ZRANGE", "redlock1:readers:{"+key+"}", "0", "-1").([]any)
	for _, m := range members {
		if owner, token, ok := strings.Cut(m.(string), "|"); ok {
			owners = append(owners, owner+"|"+token)
		}
	}
	return owners
}

// Readers hold with a majority each, and no writer beside them. Each of them is shown, and can be broken
// by its token. One that lost a node takes it again, beside those who came later. A minority may
// be gone, or silent.
func TestReadersOnRealServers(t *testing.T) {
	long(t)
	t.Parallel()
	const key, ttl = "readers", time.Minute
	c := start(t, 3)
	a, b := c.open("", unguarded, calm), c.open("", unguarded, calm)
	refused := func(b *redlock.Backend) {
		t.Helper()
		c.until(func() error {
			_, err := b.Acquire(t.Context(), ask(key, ttl))
			var held *driver.HeldError
			switch {
			case err == nil:
				t.Fatal("a writer has the lock beside readers")
			case !errors.As(err, &held) || held.Mode != driver.Shared:
				return fmt.Errorf("a writer beside readers: %w", err)
			}
			return nil
		})
	}
	first := c.reads(a, key, ttl)
	c.until(func() error { // a majority was enough
		c.renew(first, ttl)
		for i, v := range first.Grant().Votes {
			if !v.Granted || len(c.readers(i, key)) != 1 {
				return fmt.Errorf("node %d has the readers %v: %+v", i, c.readers(i, key), v)
			}
		}
		return nil
	})
	name := strings.TrimSuffix(strings.SplitAfter(c.readers(0, key)[0], "|")[0], "|")
	second := c.reads(b, key, ttl)
	refused(a)
	refused(b)

	c.until(func() error {
		s, err := a.Lookup(t.Context(), key)
		if err != nil {
			return err
		}
		var tokens []uint64
		for _, h := range s.Holders {
			tokens = append(tokens, h.Fence)
		}
		slices.Sort(tokens)
		if want := []uint64{first.Grant().Fence, second.Grant().Fence}; s.Mode != driver.Shared || !slices.Equal(tokens, want) {
			return fmt.Errorf("%v holders with tokens %v, want shared ones with %v", s.Mode, tokens, want)
		}
		return nil
	})

	// The first reader's time ends early at one node, where another comes.
	mine := slices.IndexFunc(c.readers(2, key), func(m string) bool { return strings.HasPrefix(m, name) })
	c.do(2, "ZREM", "redlock1:readers:{"+key+"}", c.readers(2, key)[mine])
	third := c.reads(b, key, ttl)
	for range 2 {
		c.renew(first, ttl)
	}
	c.until(func() error {
		if all := c.readers(2, key); !slices.ContainsFunc(all, func(m string) bool {
			return strings.HasSuffix(m, fmt.Sprint("|", first.Grant().Fence))
		}) {
			c.renew(first, ttl)
			return fmt.Errorf("the node that the first reader lost has %v", all)
		}
		return nil
	})

	drivertest.Must(t, a.Break(t.Context(), key, driver.Holder{Fence: second.Grant().Fence}))
	if _, err := second.Renew(t.Context(), &driver.Renewal{TTL: ttl}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a reader that was broken renews: %v", err)
	}
	c.renew(third, ttl)

	for _, harm := range []struct{ do, heal func() error }{
		{c.servers[1].Pause, c.servers[1].Resume},
		{c.servers[1].Kill, c.servers[1].Start},
	} {
		drivertest.Must(t, harm.do())
		l := c.reads(b, key, ttl)
		refused(a)
		c.renew(first, ttl)
		c.release(l)
		drivertest.Must(t, harm.heal())
	}
	c.release(first)
	refused(b)
	c.release(third)
	token := third.Grant().Fence
	writer := c.hold(b, key, ttl)
	if f := writer.Grant().Fence; f <= token {
		t.Errorf("a writer has token %d after %d", f, token)
	}
	c.release(writer)
}
