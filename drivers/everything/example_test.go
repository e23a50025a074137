package everything_test

import (
	"fmt"
	"slices"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/everything"
)

// One import registers every driver that there is.
func Example() {
	drivers := dlock.Drivers()
	fmt.Println(slices.Contains(drivers, "redis"), slices.Contains(drivers, "etcd"))
	// Output: true true
}
