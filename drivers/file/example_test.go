package file_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/file"
)

func folder() string {
	dir, err := os.MkdirTemp("", "locks-")
	if err != nil {
		log.Fatal(err)
	}
	return dir
}

// Programs that name the same folder exclude each other.
func Example() {
	dir := folder()
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	one, err := dlock.OpenURL("file://" + dir)
	if err != nil {
		log.Fatal(err)
	}
	defer one.Close()
	other, err := dlock.OpenURL("file://" + dir)
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close()

	lease, err := one.Lock(context.Background(), "nightly")
	if err != nil {
		log.Fatal(err)
	}
	_, err = other.TryLock(context.Background(), "nightly")
	fmt.Println("held:", errors.Is(err, dlock.ErrHeld))
	fmt.Println("released:", lease.Unlock())
	// Output:
	// held: true
	// released: <nil>
}

// A folder that a program chooses itself. Leases have no TTL: a lock ends with its process.
func ExampleNew() {
	dir := folder()
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	backend, err := file.New(&file.Options{Folder: dir})
	if err != nil {
		log.Fatal(err)
	}
	locks, err := dlock.New(backend)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Lock(context.Background(), "nightly")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock()
	_, ends := lease.Deadline()
	fmt.Println("ends by itself:", ends)
	// Output: ends by itself: false
}
