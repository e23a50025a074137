package zookeeper_test

import (
	"context"
	"log"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/zookeeper"
)

// The shortest way: by URL.
func Example() {
	locks, err := dlock.OpenURL("zk://a.example.com:2181,b.example.com:2181,c.example.com:2181?ttl=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close() //nolint:errcheck // the program ends
	err = dlock.Do(context.Background(), locks, "nightly", func(ctx context.Context) error {
		return nil // the work, under ctx
	})
	if err != nil {
		log.Print(err)
	}
}

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
