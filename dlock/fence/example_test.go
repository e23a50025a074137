package fence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/fence"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// A document is a Store of its own: its mutex makes the mark and the write one step.
type document struct {
	mu   sync.Mutex
	mark uint64
	text string
}

// Raise is called with the mutex held.
func (d *document) Raise(_ context.Context, _ string, token uint64) (uint64, error) {
	d.mark = max(d.mark, token)
	return d.mark, nil
}

func (d *document) write(ctx context.Context, token uint64, text string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := fence.Check(ctx, d, "document", token); err != nil {
		return err
	}
	d.text = text
	return nil
}

const shortTTL = 100 * time.Millisecond

func client() *dlock.Client {
	locks, err := dlock.New(memory.New(), dlock.WithLogger(nil), dlock.WithRequire(driver.FeatureFencing))
	if err != nil {
		log.Fatal(err)
	}
	return locks
}

// tokens returns the token of a client that is paused beyond the end of its lease, and that of the
// next holder.
func tokens(locks *dlock.Client, key string) (slow, quick uint64) {
	paused, err := locks.Lock(context.Background(), key, dlock.WithTTL(shortTTL), dlock.WithMaxHold(shortTTL))
	if err != nil {
		log.Fatal(err)
	}
	<-paused.Done() // the client does not notice it
	next, err := locks.Lock(context.Background(), key)
	if err != nil {
		log.Fatal(err)
	}
	defer next.Unlock() //nolint:errcheck // the example is over
	return paused.Fence(), next.Fence()
}

// A client is paused beyond the end of its lease. Another one takes the lock and writes. The
// late write of the first is refused.
func Example() {
	locks := client()
	defer locks.Close()
	ctx := context.Background()
	var doc document
	slow, quick := tokens(locks, "document")
	fmt.Println("quick:", doc.write(ctx, quick, "new"))
	fmt.Println("slow is refused:", errors.Is(doc.write(ctx, slow, "old"), fence.ErrStale))
	fmt.Println("stored:", doc.text)
	// Output:
	// quick: <nil>
	// slow is refused: true
	// stored: new
}

// An equal token passes: one lease may write more than once.
func ExampleCheck() {
	ctx := context.Background()
	var doc document
	for _, token := range []uint64{7, 7, 6} {
		fmt.Println(fence.Check(ctx, &doc, "document", token))
	}
	// Output:
	// <nil>
	// <nil>
	// fence: "document": token 6 is stale: the store has seen 7, so another owner has had the lock since
}

// Code deep in a repository takes the token out of its context.
func ExampleToken() {
	locks := client()
	defer locks.Close()
	save := func(ctx context.Context) error {
		token, err := fence.Token(ctx, "document")
		fmt.Println("a token:", token > 0)
		return err
	}
	fmt.Println(dlock.Do(context.Background(), locks, "document", save))
	fmt.Println("outside of a lock:", errors.Is(save(context.Background()), dlock.ErrInvalid))
	// Output:
	// a token: true
	// <nil>
	// a token: false
	// outside of a lock: true
}

// The table of marks for a migration.
func ExampleSchema() {
	fmt.Println(fence.Schema(fence.Postgres, "fences"))
	fmt.Println(fence.Schema(fence.MySQL, "fences"))
	fmt.Println(fence.Schema(fence.SQLite, "fences"))
	// Output:
	// CREATE TABLE IF NOT EXISTS "fences" (resource bytea PRIMARY KEY, token bigint NOT NULL)
	// CREATE TABLE IF NOT EXISTS `fences` (resource varbinary(512) PRIMARY KEY, token bigint NOT NULL) ENGINE=InnoDB
	// CREATE TABLE IF NOT EXISTS "fences" (resource blob PRIMARY KEY NOT NULL, token integer NOT NULL)
}
