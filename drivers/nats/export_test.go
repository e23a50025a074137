package nats

import (
	"time"

	"github.com/redlock-go/redlock/driver/base"
)

// HoldUndo keeps the backend from undoing anything until the channel is closed.
func (b *Backend) HoldUndo() chan struct{} {
	proceed := make(chan struct{})
	b.calls.Undo(time.Now().Add(time.Hour), func(*base.Call) error { <-proceed; return nil })
	return proceed
}
