package base_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver/base"
)

// A call ends in time. The example of package driver is a whole driver.
func ExampleCalls() {
	calls := base.Calls{Name: "kv", Timeout: time.Second / 2}
	err := calls.Do(context.Background(), calls.Bound(time.Minute), func(call *base.Call) error {
		<-call.Done() // a server that does not answer
		return call.Err()
	})
	fmt.Println(err)
	fmt.Println("is the caller's deadline:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// kv: the server did not answer in time
	// is the caller's deadline: false
}
