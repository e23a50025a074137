package sqltable

import (
	"context"
	"time"

	"github.com/redlock-go/redlock/driver/base"
)

// Clean deletes the rows of keys that have been free for longer than this.
func (b *Backend) Clean(ctx context.Context, free time.Duration) error {
	return b.calls.Do(ctx, 10*b.opt.CallTimeout, func(call *base.Call) error {
		c := b.newCall(call)
		if err := c.greet(); err != nil {
			return err
		}
		return c.clean(time.Microsecond, free)
	})
}

// SetClockForward makes the server's clock seem to have been set forward since it was read.
func (b *Backend) SetClockForward(by time.Duration) { b.clock.ahead.Add(-by.Microseconds()) }
