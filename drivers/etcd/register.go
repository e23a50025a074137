package etcd

import "github.com/redlock-go/redlock/dlock"

func init() {
	dlock.Register("etcd", Driver{})
	dlock.Register("etcds", Driver{})
}
