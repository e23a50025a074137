package file_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/file"
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
