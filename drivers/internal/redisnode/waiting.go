package redisnode

import (
	"context"
	"errors"
	"strings"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/pipeline"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/pubsub"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/waitqueue"
)

// Watch signals when key may have become free. All waiters of a backend share one connection,
// and all waiters of a key one subscription on it. If the server does not confirm the
// subscription within the call timeout, the waiter gets a value as soon as it does.
func (n *Node) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	wait, cancel := context.WithTimeout(ctx, n.cfg.CallTimeout)
	defer cancel()
	wake, err := n.queue.Watch(ctx, wait, key)
	if err != nil {
		return nil, n.explain(key, err)
	}
	return wake, nil
}

// A queueHost is a node with the methods that its wait queue needs.
type queueHost struct{ node *Node }

var _ waitqueue.Host = queueHost{}

func (h queueHost) Channel(key string) string { return h.node.names.Channel(key) }

func (h queueHost) Key(lock string) string { return strings.TrimPrefix(lock, h.node.cfg.Prefix) }

func (h queueHost) Shard(ctx context.Context, key string) (string, error) {
	if !h.node.cfg.Cluster {
		return "", nil
	}
	p, _, err := h.node.router.process(ctx, h.node.names.Lock(key))
	if err != nil {
		return "", err
	}
	return p.run, nil
}

func (h queueHost) KnownShard(key string) (string, bool) {
	if !h.node.cfg.Cluster {
		return "", false
	}
	p := h.node.router.known(h.node.names.Lock(key))
	if p == nil {
		return "", false
	}
	return p.run, true
}

func (h queueHost) Subscribe(ctx context.Context, sink pubsub.Sink, channels []string) (s pubsub.Subscription, err error) {
	defer Contain(&err)
	return h.node.cfg.Client.Subscribe(ctx, sink, channels)
}

func (h queueHost) Listen(key, listener string, stay bool) (kept bool, err error) {
	n, life := h.node, "0"
	if stay {
		life = queueLife
	}
	a, err := n.try(context.Background(), lua.Listen, []string{n.names.Lock(key), n.names.WaitQueue(key)}, "0", listener, life)
	if err != nil {
		return false, err
	}
	code, _ := number(a.Reply, 0)
	return code != 0, nil
}

func (h queueHost) PassOn(key, place string) {
	n := h.node
	n.work.Go(func() {
		_, _ = n.releasePlace(context.Background(), key, "", place, releaseTries) // else it ends by itself
	})
}

func (h queueHost) Refusal(err error) error {
	var reply pipeline.ServerError
	if !errors.As(err, &reply) || pipeline.IsCode(err, "NOAUTH") || pipeline.IsCode(err, "WRONGPASS") {
		return nil
	}
	if refused := h.node.verdict("", reply); refused != nil && refused.RetryAfter == 0 {
		return refused
	}
	return nil
}

func (h queueHost) Notify(kind driver.NoticeKind, err error, detail string) {
	h.node.cfg.Notify(driver.Notice{Kind: kind, Node: h.node.cfg.Addr, Err: err, Detail: detail})
}

func (h queueHost) Begin() { h.node.work.Add() }

func (h queueHost) End() { h.node.work.Done() }

func (h queueHost) Go(run func()) { h.node.wg.Go(run) }
