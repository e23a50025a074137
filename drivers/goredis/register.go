package goredis

import "github.com/redlock-go/redlock/dlock"

func init() {
	dlock.Register("redis", Driver{})
	dlock.Register("rediss", Driver{})
	dlock.Register("redis+unix", Driver{})
}
