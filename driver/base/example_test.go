package base_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A call ends in time, and what it may have left is undone. The example of package driver is a whole
// driver.
func ExampleCalls() {
	calls := base.Calls{Name: "kv", Timeout: time.Second / 2}

	call, err := calls.Begin(context.Background(), calls.Bound(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	<-call.Done() // a server that does not answer
	err = call.Failed(call.Err())
	fmt.Println(err)
	fmt.Println("is the caller's deadline:", errors.Is(err, context.DeadlineExceeded))
	tries := 0
	calls.Undo(time.Now().Add(time.Minute), func(*base.Call) error {
		if tries++; tries < 3 {
			return errors.New("no answer")
		}
		return nil
	})
	call.End()

	calls.Close() // waits for the rest
	fmt.Println("undone after", tries, "tries")
	_, err = calls.Begin(context.Background(), calls.Bound(0))
	fmt.Println("is ErrClosed:", errors.Is(err, driver.ErrClosed))

	// Output:
	// kv: the server did not answer in time
	// is the caller's deadline: false
	// undone after 3 tries
	// is ErrClosed: true
}
