package both_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/dlock/both"
	_ "github.com/redlock-go/redlock/drivers/memory"
)

// A program changes its backend while it runs: between two rollouts every instance uses both.
func Example() {
	locks := map[string]*dlock.Client{}
	for _, url := range []string{"memory:old", "both:memory:old memory:new", "memory:new"} {
		c, err := dlock.OpenURL(url)
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		locks[url] = c
	}
	ctx := context.Background()
	lease, err := locks["both:memory:old memory:new"].Lock(ctx, "nightly")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock()
	_, err = locks["memory:old"].TryLock(ctx, "nightly")
	fmt.Println("an instance before the change:", errors.Is(err, dlock.ErrHeld))
	_, err = locks["memory:new"].TryLock(ctx, "nightly")
	fmt.Println("an instance after it:", errors.Is(err, dlock.ErrHeld))
	// Output:
	// an instance before the change: true
	// an instance after it: true
}
