package sqltable

import (
	"context"
	"time"
)

// Clean deletes the rows of keys that have been free for longer than this.
func (b *Backend) Clean(ctx context.Context, free time.Duration) error {
	call, err := b.calls.Begin(ctx, 10*b.opt.CallTimeout)
	if err != nil {
		return err
	}
	defer call.End()
	c := b.newCall(call)
	if err := c.greet(); err != nil {
		return err
	}
	return c.clean(time.Microsecond, free)
}
