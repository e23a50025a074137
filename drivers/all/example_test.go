package all_test

import (
	"fmt"
	"strings"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/all"
)

// One import registers every driver of the main module.
func Example() {
	fmt.Println(strings.Join(dlock.Drivers(), " "))
	// Output: both file memory postgres postgresql redis redis+unix rediss redlock valkey valkey+unix valkeys
}
