package redisnode

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// Each prefix with a guard has texts of its own, because a text is callable as soon as it is loaded,
// and a handshake repairs the memory of one prefix. They stay few and small.
func TestManyPrefixesWithAGuardNeedLittleMemory(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	c := plain(t, s)
	scripts := func() (count, bytes int) {
		info := do(t, s, "INFO", "memory").(string)
		read := func(name string) int {
			n, err := strconv.Atoi(regexp.MustCompile(name + `:(\d+)`).FindStringSubmatch(info)[1])
			drivertest.Must(t, err)
			return n
		}
		return read("number_of_cached_scripts"), read("used_memory_scripts")
	}
	before, size := scripts()
	const prefixes = 20
	for i := range prefixes {
		n, _ := newGuarded(t, c, func(c *Config) { c.Prefix = fmt.Sprint(i, ":") })
		l, err := bid(n, "k")
		drivertest.Must(t, err)
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: 30 * time.Second}); err != nil {
			t.Fatal(err)
		}
		drivertest.Must(t, l.Release(t.Context()))
	}
	after, grown := scripts()
	if count, bytes := (after-before)/prefixes, (grown-size)/prefixes; count > 3 || bytes > 20_000 {
		t.Errorf("each prefix has %d texts, and %d bytes", count, bytes)
	}
}
