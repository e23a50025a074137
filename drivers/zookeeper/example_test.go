package zookeeper_test

import (
	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/drivers/zookeeper"
)

// A program with go-zookeeper's own lock shares it with one that uses this backend.
func ExampleBackend_Path() {
	var (
		backend *zookeeper.Backend
		conn    *zk.Conn
	)
	nightly := func() error {
		lock := zk.NewLock(conn, backend.Path("nightly"), zk.WorldACL(zk.PermAll))
		if err := lock.Lock(); err != nil {
			return err
		}
		return lock.Unlock()
	}
	_ = nightly
}
