package goredis

import (
	"context"
	"regexp"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// ScriptsOf returns the texts of acquire and release as they are on this server.
func ScriptsOf(t testing.TB, c *redis.Client) (acquire, release string) {
	info, err := c.Info(context.Background(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	run := regexp.MustCompile(`run_id:(\w+)`).FindStringSubmatch(info)
	return redisnode.Texts(run[1])
}
