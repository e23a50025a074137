package valkeygo

import (
	"context"
	"errors"
	"sync"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// Subscribe opens a subscription on a connection of its own. The library connects at the first command:
// in a Cluster to the server of that command's key, or to a random server if it has no key.
func (c *client) Subscribe(ctx context.Context, sink redisnode.Sink, key, channel string) (redisnode.Subscription, error) {
	v, err := c.get()
	if err != nil {
		return nil, err
	}
	conn, release := v.Dedicate()
	s := &subscription{client: c, conn: conn, channel: channel, close: sync.OnceFunc(func() {
		go func() { // the library waits for an answer
			conn.Close()
			release()
		}()
	})}
	if inCluster(v) {
		err = s.do(ctx, conn.B().Eval().Script("return 1").Numkeys(1).Key(key).Build())
	}
	if err == nil {
		broken := conn.SetPubSubHooks(valkey.PubSubHooks{
			OnMessage: func(m valkey.PubSubMessage) { sink.Message(m.Message) },
			OnSubscription: func(m valkey.PubSubSubscription) {
				if m.Kind == "subscribe" {
					sink.Subscribed()
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
		err = s.Again(ctx)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// A subscription waits for the answer to each command.
type subscription struct {
	client  *client
	conn    valkey.DedicatedClient
	channel string
	close   func()
}

// Again subscribes to the channel.
func (s *subscription) Again(ctx context.Context) error {
	return s.do(ctx, s.conn.B().Subscribe().Channel(s.channel).Build())
}

// Close ends the subscription.
func (s *subscription) Close() { s.close() }

func (s *subscription) do(ctx context.Context, cmd valkey.Completed) (err error) {
	defer base.Contain(&err)
	if err := s.conn.Do(ctx, cmd).Error(); !valkey.IsValkeyNil(err) {
		return s.client.translate(err)
	}
	return nil
}
