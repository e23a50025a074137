package cli_test

import (
	"fmt"
	"io"

	"github.com/redlock-go/redlock/redlocktest/cli"
)

// A program can offer the whole command for its own driver. Its main is
//
//	func main() { os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr)) }
//
// and imports the drivers that it tests.
func Example() {
	code := cli.Main([]string{"redlocktest", "--only", "basic/info", "memory:"}, io.Discard, io.Discard)
	fmt.Println("exit code", code)
	// Output: exit code 0
}
