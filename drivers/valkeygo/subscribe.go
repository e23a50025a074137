package valkeygo

import (
	"context"
	"errors"
	"sync"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// Subscribe opens a subscription on a connection of its own. The library connects at the first command:
// in a Cluster to the server of that command's key, or to a random server if it has no key.
func (c *client) Subscribe(ctx context.Context, sink redisnode.Sink, channels []string) (redisnode.Subscription, error) {
	v, err := c.get()
	if err != nil {
		return nil, err
	}
	conn, release := v.Dedicate()
	s := &subscription{client: c, conn: conn, close: sync.OnceFunc(func() {
		go func() { // the library waits for an answer
			conn.Close()
			release()
		}()
	})}
	if inCluster(v) {
		err = s.do(ctx, conn.B().Eval().Script("return 1").Numkeys(1).Key(channels[len(channels)-1]).Build())
	}
	if err == nil {
		broken := conn.SetPubSubHooks(valkey.PubSubHooks{
			OnMessage: func(m valkey.PubSubMessage) { sink.Message(m.Channel, m.Message) },
			OnSubscription: func(m valkey.PubSubSubscription) {
				if m.Kind == "subscribe" {
					sink.Subscribed(m.Channel)
				}
			},
		})
		go func() {
			err := <-broken
			if err == nil {
				err = errors.New("the subscription ended")
			}
			sink.Broken(c.translate(err))
		}()
		err = s.Add(ctx, channels...)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// A subscription waits for the answer to each command.
type subscription struct {
	client *client
	conn   valkey.DedicatedClient
	close  func()
}

// Add subscribes to channels.
func (s *subscription) Add(ctx context.Context, channels ...string) error {
	return s.do(ctx, s.conn.B().Subscribe().Channel(channels...).Build())
}

// Remove ends the subscription to channels.
func (s *subscription) Remove(ctx context.Context, channels ...string) error {
	return s.do(ctx, s.conn.B().Unsubscribe().Channel(channels...).Build())
}

// Close ends the subscription.
func (s *subscription) Close() { s.close() }

func (s *subscription) do(ctx context.Context, cmd valkey.Completed) (err error) {
	defer redisnode.Contain(&err)
	if err := s.conn.Do(ctx, cmd).Error(); !valkey.IsValkeyNil(err) {
		return s.client.translate(err)
	}
	return nil
}
