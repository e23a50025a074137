package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// countingContext counts the contexts that derive from it and have not ended.
type countingContext struct {
	context.Context
	live atomic.Int64
}

func (c *countingContext) AfterFunc(f func()) func() bool {
	c.live.Add(1)
	stop := context.AfterFunc(c.Context, f)
	var once sync.Once
	return func() bool {
		once.Do(func() { c.live.Add(-1) })
		return stop()
	}
}

func (c *countingContext) Done() <-chan struct{} { return c.Context.Done() }

// TestWaitingOnManySlotsLeavesNoContexts: the waits of a call end with their round, and not with
// the caller's context.
func TestWaitingOnManySlotsLeavesNoContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSpyClient(t, memory.New())
		for range 17 {
			lock(t, c, "k", dlock.WithSlots(17))
		}
		parent, cancel := context.WithCancel(t.Context())
		ctx := &countingContext{Context: onlyDone{parent}}
		done := make(chan error)
		go func() {
			_, err := c.Lock(ctx, "k", dlock.WithSlots(17))
			done <- err
		}()
		time.Sleep(10 * time.Second)
		soon := ctx.live.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if later := ctx.live.Load(); later > soon {
			t.Errorf("%d contexts after 10 s, and %d a minute later", soon, later)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// onlyDone hides that a context is one of package context, which would not ask for AfterFunc.
type onlyDone struct{ context.Context }

func (onlyDone) Value(any) any { return nil }

// TestAQueueThatDoesNotBlockIsNotAskedInABusyLoop: blocking is optional, also with FeatureQueueing.
func TestAQueueThatDoesNotBlockIsNotAskedInABusyLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		var asked atomic.Int64
		s.acquire = func(_ context.Context, r *driver.Request) error {
			if asked.Add(1) > 10_000 {
				return &driver.RefusedError{Reason: "asked too often"}
			}
			return &driver.HeldError{Holder: "another/1"}
		}
		c := newSpyClient(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Lock(ctx, "k")
		if n := asked.Load(); !errors.Is(err, dlock.ErrHeld) || n > 200 {
			t.Errorf("asked %d times in a second: %v", n, err)
		}
	})
}

// TestRequiringAnyFeatureIsPossible: a feature that the contract has is known to WithRequire.
func TestRequiringAnyFeatureIsPossible(t *testing.T) {
	for f := driver.FeatureShared; f <= driver.FeatureTokens; f <<= 1 {
		c, err := dlock.New(memory.New(), dlock.WithRequire(f))
		if err != nil && !strings.Contains(fmt.Sprint(err), "lacks") {
			t.Errorf("%v: %v", f, err)
		}
		if c != nil {
			_ = c.Close()
		}
	}
}
