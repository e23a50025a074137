package async

import (
	"context"
	"errors"
	"testing"
	"time"
)

// What has happened counts although the time is over, and without it Await ends at once.
func TestAwaitBehindTheDeadline(t *testing.T) {
	past := Within(t.Context(), -time.Second)
	happened := make(chan struct{})
	close(happened)
	for range 100 {
		if err := Await(past, happened); err != nil {
			t.Fatal(err)
		}
	}
	if err := Await(past, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing has happened: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Await(Within(ended, -time.Second), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the context was cancelled: %v", err)
	}
}
