package bench

import (
	"context"
	"errors"
	"testing"
)

func TestAPoolThatIsExhaustedIsWaitedForUntilTheContextEnds(t *testing.T) {
	d := &dedicated{slots: make(chan struct{}, 1)}
	d.slots <- struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.Lock(ctx, "key", true); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}
