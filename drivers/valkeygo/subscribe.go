package valkeygo

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

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
	if inCluster(v) {
		slot = channels[len(channels)-1]
	}
	go s.work(slot)
	return s, nil
}

// A subscription sends its commands from a goroutine of its own, in order. Commands that
// subscribe do not wait for each other's answers, which would take a round trip for each.
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

// Close ends the subscription; its connection is closed in the background.
func (s *subscription) Close() { s.once.Do(func() { close(s.end) }) }

// work sends queued changes until the subscription ends or breaks. The library connects at the
// first command: in a Cluster to the server of that command's key, or to a random server if it
// has no key.
func (s *subscription) work(key string) {
	defer func() {
		s.conn.Close()
		s.release()
	}()
	if key != "" {
		if err := s.do(s.conn.B().Eval().Script("return 1").Numkeys(1).Key(key).Build()); err != nil {
			s.sink.Broken(s.client.translate(err))
			return
		}
	}
	var window <-chan time.Time // not nil: changes are gathered until it ends, or until no command is under way
	answers, gone := make(chan error), make(chan struct{})
	defer close(gone)
	for under, stands, together := 0, false, false; ; {
		if next, ok := s.pop(under == 0, together && window == nil); ok {
			under++
			together = next.add && stands
			window = time.After(gatherFor)
			go func() {
				select {
				case answers <- s.send(next):
				case <-gone:
				}
			}()
			continue
		}
		var err error
		select {
		case <-s.end:
			return
		case err = <-s.broken:
			if err == nil {
				err = errors.New("the subscription ended")
			}
		case <-s.more:
		case <-window:
			window = nil
		case err = <-answers:
			under--
			stands = true
		}
		if err != nil {
			s.sink.Broken(s.client.translate(err))
			return
		}
	}
}

// gatherFor is how long changes are gathered for one command while another is under way.
const gatherFor = time.Millisecond

// pop takes the next change from the queue, if any change may be sent, or a subscription may and
// this is one.
func (s *subscription) pop(anyChange, add bool) (next change, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 || !anyChange && !(add && s.queue[0].add) {
		return change{}, false
	}
	next = s.queue[0]
	s.queue = s.queue[1:]
	return next, true
}

// send sends a change, and waits for the answer.
func (s *subscription) send(c change) error {
	cmd := s.conn.B().Unsubscribe().Channel(c.channels...).Build()
	if c.add {
		cmd = s.conn.B().Subscribe().Channel(c.channels...).Build()
	}
	if err := s.do(cmd); !valkey.IsValkeyNil(err) {
		return err
	}
	return nil
}

func (s *subscription) do(cmd valkey.Completed) (err error) {
	defer redisnode.Contain(&err)
	return s.conn.Do(context.Background(), cmd).Error()
}
