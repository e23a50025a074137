package printable_test

import (
	"fmt"

	"github.com/redlock-go/redlock/driver/printable"
)

// A key that another client chose does not clear the screen.
func Example() {
	fmt.Println(printable.Text("jobs/\x1b[2J"))
	// Output: jobs/\x1b[2J
}
