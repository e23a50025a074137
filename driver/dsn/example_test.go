package dsn_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver/dsn"
)

// options are a driver's own, read from its URL.
type options struct {
	timeout time.Duration
	conns   int
	mode    string
}

func parse(url string) (options, error) {
	_, query, _ := strings.Cut(url, "?")
	p := dsn.Query(query)
	o := options{
		timeout: p.Duration("timeout", time.Second, time.Millisecond),
		conns:   p.Int("conns", 4, 1, 100),
		mode:    p.Enum("mode", "primary", "primary", "replica"),
	}
	return o, p.Err()
}

// How a driver's Open reads its parameters.
func Example() {
	o, err := parse("toy://host:1234/?timeout=150ms&conns=8")
	fmt.Println(o.timeout, o.conns, o.mode, err)

	_, err = parse("toy://host:1234/?timeout=soon")
	fmt.Println(err)

	_, err = parse("toy://host:1234/?timeuot=150ms")
	fmt.Println(err)
	// Output:
	// 150ms 8 primary <nil>
	// parameter "timeout": must be a duration such as 150ms or 10s, of at least 1ms
	// parameter "timeuot": is unknown; known are ttl, prefix, conns, mode, timeout
}
