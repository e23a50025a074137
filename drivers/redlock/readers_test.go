package redlock_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
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

// A reader has a lock at each node, and each reader is shown. One that lost a node takes it again, beside those who
// came later.
func TestReadersOnRealServers(t *testing.T) {
	long(t)
	t.Parallel()
	const key, ttl = "readers", time.Minute
	c := start(t, 3)
	a, b := c.open("", unguarded, calm), c.open("", unguarded, calm)
	first := c.reads(a, key, ttl)
	c.until(func() error { // a majority was enough; and a late vote, which is given back, is there for a moment
		for _, v := range c.renew(first, ttl).Votes {
			if !v.Granted {
				return cmp.Or(v.Err, fmt.Errorf("%s has not answered a renewal", v.Node))
			}
		}
		return nil
	})
	mine := c.readers(2, key)[0]
	second := c.reads(b, key, ttl)
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
		c.renew(second, ttl) // until it has the node that the first one loses
		if n := len(c.readers(2, key)); n != 2 {
			return fmt.Errorf("node 2 has %d readers", n)
		}
		if want := []uint64{first.Grant().Fence, second.Grant().Fence}; s.Mode != driver.Shared || !slices.Equal(tokens, want) {
			return fmt.Errorf("%v holders with tokens %v, want shared ones with %v", s.Mode, tokens, want)
		}
		return nil
	})

	// The first reader's time ends early at one node, where another comes.
	c.do(2, "ZREM", "redlock1:readers:{"+key+"}", mine)
	c.reads(b, key, ttl)
	c.until(func() error {
		c.renew(first, ttl)
		all := c.readers(2, key)
		if !slices.ContainsFunc(all, func(m string) bool { return strings.HasSuffix(m, fmt.Sprint("|", first.Grant().Fence)) }) {
			return fmt.Errorf("the node that the first reader lost has %v", all)
		}
		return nil
	})
}
