package cli_test

import (
	"fmt"
	"os"
	"strings"

	"github.com/redlock-go/redlock/dlock/cli"
	_ "github.com/redlock-go/redlock/drivers/file" // or a driver of your own
)

// A program with drivers of its own has the whole command. Its main is
//
//	func main() { os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) }
func Example() {
	dir, err := os.MkdirTemp("", "locks-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	args := []string{"dlock", "status", "--json", "--url", "file://" + dir, "nightly"}
	code := cli.Main(args, strings.NewReader(""), os.Stdout, os.Stderr)
	fmt.Println("exit code", code)
	// Output:
	// [
	//   {
	//     "key": "nightly",
	//     "waiting": 0,
	//     "verdict": "free"
	//   }
	// ]
	// exit code 0
}
