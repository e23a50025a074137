package etcd

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
)

// Watch signals every removal of an entry of key, and every break of the watch.
func (b *Backend) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	bounded, err := b.calls.Begin(ctx, b.opt.CallTimeout)
	if err != nil {
		return nil, err
	}
	defer bounded.End()
	client, err := b.connect(bounded)
	if err != nil {
		return nil, b.failed(bounded, err)
	}
	watching, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
	all := queueSpan(b.Path(key))
	begin := func() clientv3.WatchChan { // returns when a member has answered
		return client.Watch(watching, all.from, clientv3.WithRange(all.to), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	}
	made := make(chan error, 1)
	signal := make(chan struct{}, 1)
	started := b.calls.Go(func(own context.Context) {
		defer stop()
		defer context.AfterFunc(own, stop)()
		events := begin()
		first := <-events
		err := first.Err()
		if err == nil && !first.Created {
			err = errors.New("the watch was not made")
		}
		if made <- err; err == nil {
			forward(watching, events, begin, func(err error) { b.broke(key, err) }, signal)
		}
	})
	if !started {
		made <- driver.ErrClosed
	}
	select {
	case err = <-made:
	case <-bounded.Done():
		err = bounded.Err()
	}
	if err != nil {
		stop()
		return nil, b.failed(bounded, err)
	}
	return signal, nil
}

// watchPause is the pause before a watch is tried again.
const watchPause = 100 * time.Millisecond

// broke reports that a watch of key broke.
func (b *Backend) broke(key string, err error) {
	if b.opt.Notify != nil {
		b.opt.Notify(driver.Notice{Kind: driver.NoticeDisconnected, Node: b.address, Key: key, Err: err, Detail: "a watch broke, and is made again"})
	}
}

// forward gives signal a value for each answer of a watch, and begins another watch when one
// breaks, until ctx ends.
func forward(ctx context.Context, events clientv3.WatchChan, begin func() clientv3.WatchChan, broke func(error), signal chan<- struct{}) {
	for {
		answer, ok := <-events
		if ctx.Err() != nil {
			return
		}
		select {
		case signal <- struct{}{}:
		default:
		}
		if ok && answer.Err() == nil {
			continue
		}
		broke(answer.Err())
		select {
		case <-time.After(watchPause):
		case <-ctx.Done():
			return
		}
		events = begin() // its first answer counts as a value, because changes may have been missed
	}
}
