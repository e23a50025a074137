package etcd_test

import (
	"context"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/etcd"
)

// A client that the program has already.
func ExampleNew() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"a.example.com:2379", "b.example.com:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	backend, err := etcd.New(client, &etcd.Options{Path: "/shop/locks/"})
	if err != nil {
		log.Fatal(err)
	}
	locks, err := dlock.New(backend)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close() //nolint:errcheck // the program ends
}

// A program with etcd's own mutex shares a lock with one that uses this backend.
func ExampleBackend_Path() {
	var (
		backend *etcd.Backend
		session *concurrency.Session
	)
	nightly := func(ctx context.Context) error {
		mutex := concurrency.NewMutex(session, backend.Path("nightly"))
		if err := mutex.Lock(ctx); err != nil {
			return err
		}
		return mutex.Unlock(context.WithoutCancel(ctx))
	}
	_ = nightly
}

// What the work writes to the same etcd is written under the lock, or not at all.
func ExampleBackend_IsOwner() {
	var (
		client  *clientv3.Client
		backend *etcd.Backend
		locks   *dlock.Client // made of backend
	)
	err := dlock.Do(context.Background(), locks, "nightly", func(ctx context.Context) error {
		lease, _ := dlock.LeaseFor(ctx, "nightly")
		owner, err := backend.IsOwner(ctx, "nightly", lease.Fence())
		if err != nil {
			return err
		}
		done, err := client.Txn(ctx).If(owner).Then(clientv3.OpPut("/shop/report", "done")).Commit()
		if err == nil && !done.Succeeded {
			err = dlock.ErrLost
		}
		return err
	})
	if err != nil {
		log.Print(err)
	}
}
