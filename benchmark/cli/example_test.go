package cli_test

import (
	"fmt"
	"io"

	"github.com/redlock-go/redlock/benchmark/cli"
)

// A program can measure its own driver. Its main is
//
//	func main() { os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr)) }
//
// and imports the driver.
func Example() {
	code := cli.Main([]string{"benchmark", "-help"}, io.Discard, io.Discard)
	fmt.Println("exit code", code)
	// Output: exit code 0
}
