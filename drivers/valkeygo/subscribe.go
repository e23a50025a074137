package valkeygo

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// Subscribe opens a subscription on a connection of its own.
func (c *client) Subscribe(_ context.Context, sink redisnode.Sink, channels []string) (redisnode.Subscription, error) {
	v, err := c.get()
	if err != nil {
		return nil, err
	}
	conn, release := v.Dedicate()
	s := &subscription{client: c, conn: conn, release: release, sink: sink, more: make(chan struct{}, 1), end: make(chan struct{})}
	hooks := valkey.PubSubHooks{
		OnMessage: func(m valkey.PubSubMessage) { sink.Message(m.Channel, m.Message) },
		OnSubscription: func(m valkey.PubSubSubscription) {
			if m.Kind == "subscribe" {
				sink.Subscribed(m.Channel)
			}
		},
	}
	s.broken = conn.SetPubSubHooks(hooks)
	s.push(true, channels)
	slot := ""
	if isCluster(v) {
		slot = channels[len(channels)-1]
	}
	go s.work(slot)
	return s, nil
}

// A subscription sends its commands from a goroutine of its own, in order: the
// library waits for the answers, which arrive through the hooks. What is queued meanwhile
// goes as one command.
type subscription struct {
	client  *client
	conn    valkey.DedicatedClient
	release func()
	sink    redisnode.Sink
	broken  <-chan error

	mu    sync.Mutex
	queue []change
	more  chan struct{}

	once sync.Once
	end  chan struct{}
}

// A change subscribes to channels, or ends the subscription to them.
type change struct {
	add      bool
	channels []string
}

func (s *subscription) push(add bool, channels []string) {
	s.mu.Lock()
	if last := len(s.queue) - 1; last >= 0 && s.queue[last].add == add {
		s.queue[last].channels = append(s.queue[last].channels, channels...)
	} else {
		s.queue = append(s.queue, change{add, slices.Clone(channels)})
	}
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// Add subscribes to channels.
func (s *subscription) Add(_ context.Context, channels ...string) error {
	s.push(true, channels)
	return nil
}

// Remove ends the subscription to channels.
func (s *subscription) Remove(_ context.Context, channels ...string) error {
	s.push(false, channels)
	return nil
}

// Close ends the subscription; the connection goes in the background.
func (s *subscription) Close() { s.once.Do(func() { close(s.end) }) }

// work sends what is queued until the subscription ends or breaks. The library connects at
// the first command, and of a Cluster to a random server, unless that has a key, whose slot
// the other commands then share.
func (s *subscription) work(key string) {
	defer func() {
		s.conn.Close()
		s.release()
	}()
	if key != "" {
		cmd := s.conn.B().Eval().Script("return 1").Numkeys(1).Key(key).Build()
		if err := s.conn.Do(context.Background(), cmd).Error(); err != nil {
			s.sink.Broken(s.client.translate(err))
			return
		}
	}
	for {
		select {
		case <-s.end:
			return
		case err := <-s.broken:
			if err == nil {
				err = errors.New("the subscription ended")
			}
			s.sink.Broken(s.client.translate(err))
			return
		case <-s.more:
		}
		if err := s.send(); err != nil {
			s.sink.Broken(s.client.translate(err))
			return
		}
	}
}

func (s *subscription) send() error {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.mu.Unlock()
			return nil
		}
		next := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		cmd := s.conn.B().Unsubscribe().Channel(next.channels...).Build()
		if next.add {
			cmd = s.conn.B().Subscribe().Channel(next.channels...).Build()
		}
		if err := s.conn.Do(context.Background(), cmd).Error(); err != nil && !valkey.IsValkeyNil(err) {
			return err
		}
	}
}
