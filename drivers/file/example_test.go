package file_test

import (
	"fmt"
	"log"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/file"
)

// Programs that name the same folder exclude each other. Only a lock makes the folder.
func Example() {
	locks, err := dlock.OpenURL("file:///var/lock/app")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	fmt.Println(locks.TTL(), locks.Backend().Info().Features)
	// Output: 0s shared,fencing,session,tokens
}
