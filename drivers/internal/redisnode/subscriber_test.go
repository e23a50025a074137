package redisnode

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
)

// A keyed library refuses subscriptions, and notes for which keys they were.
type keyed struct {
	*library
	mu   sync.Mutex
	keys []string
}

func (k *keyed) Subscribe(_ context.Context, _ Sink, key, _ string) (Subscription, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys = append(k.keys, key)
	return nil, errors.New("no")
}

// A subscriber to a server of a Cluster finds the server by a key that it serves. Without one it would
// come to any server, and serve the next key there.
func TestASubscriberInAClusterHasAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := &keyed{library: newLibrary(time.Millisecond, true)}
		n, err := New(Config{Client: lib, Cluster: true, Abandon: func(time.Time) {}})
		if err != nil {
			t.Fatal(err)
		}
		q := n.queue
		topic, _, err := q.join("k", "one", make(chan struct{}, 1))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		q.mu.Lock()
		q.move(topic, q.subscriber("other"))
		q.mu.Unlock()
		time.Sleep(lingerTopic)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(lib.keys) < 4 || slices.Contains(lib.keys, "") {
			t.Errorf("subscriptions for the keys %q", lib.keys)
		}
	})
}

// A topic ends a while after its last waiter has left, also if it is entered as a listener just then, and not
// if there is a waiter again.
func TestATopicLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLibrary(time.Millisecond, true).node(t)
		q, wake := n.queue, make(chan struct{}, 1)
		topics := func() int {
			synctest.Wait()
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.topics)
		}
		topic, _, err := q.join("k", "", wake)
		drivertest.Must(t, err)
		q.leave(topic, wake)
		time.Sleep(lingerTopic / 2)
		if again, _, err := q.join("k", "", wake); err != nil || again != topic {
			t.Fatalf("it has ended soon: %v", err)
		}
		time.Sleep(2 * lingerTopic)
		if topics() != 1 {
			t.Error("it has ended though it has a waiter")
		}
		q.leave(topic, wake)
		q.listen(async.Within(t.Context(), second), topic)
		time.Sleep(2 * lingerTopic)
		if n := topics(); n != 0 {
			t.Errorf("%d topics are left", n)
		}
	})
}
