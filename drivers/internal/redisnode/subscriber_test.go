package redisnode

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
