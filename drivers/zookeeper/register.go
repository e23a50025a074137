package zookeeper

import "github.com/redlock-go/redlock/dlock"

func init() {
	dlock.Register("zk", Driver{})
	dlock.Register("zks", Driver{})
}
