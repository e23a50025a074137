package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
)

const (
	// watchTimeout bounds the round trip of a Watch.
	watchTimeout = time.Second
	// A minority that announced is a reason to ask as well, but a weak one: after a while, longer
	// each time, and unless the client has asked meanwhile.
	minorityPause    = 2 * time.Millisecond
	maxMinorityPause = 2 * time.Second
)

// Watch returns a channel that gets a value when a majority of the nodes announced
// that key may have become free, or a minority a while ago. The nodes that are Watchers
// must be a majority. It blocks for one round trip to that majority.
func (b *Backend) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if key == "" {
		return nil, driver.Invalid("key", "is empty")
	}
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	life, end := context.WithCancel(ctx)
	w := &watch{b: b, key: key, ch: make(chan struct{}, 1), news: make(chan int, len(b.nodes)), ready: make(chan error, len(b.nodes))}
	b.waits.enter(key)
	context.AfterFunc(life, func() { b.waits.leave(key) })
	for _, n := range b.nodes {
		go w.follow(life, n)
	}
	if err := w.subscribed(ctx); err != nil {
		end()
		return nil, err
	}
	go func() {
		defer end()
		w.run(life)
	}()
	return w.ch, nil
}

// watch gathers what the nodes announce on one key.
type watch struct {
	b     *Backend
	key   string
	ch    chan struct{}
	news  chan int   // nodes that announced
	ready chan error // one value a node: whether it is watched
}

// follow passes on what one node announces.
func (w *watch) follow(ctx context.Context, n *node) {
	wr, ok := n.backend.(driver.Watcher)
	if !ok || n.tripped.Load() {
		w.ready <- errSkipped
		return
	}
	ch, err := wr.Watch(ctx, w.key)
	w.ready <- err
	for err == nil {
		select {
		case <-ch:
		case <-ctx.Done():
			return
		case <-w.b.closed:
			return
		}
		select {
		case w.news <- n.index:
		case <-ctx.Done():
			return
		case <-w.b.closed:
			return
		}
	}
}

var errUnwatched = errors.New("redlock: a majority of the nodes cannot be watched")

// subscribed returns when a majority is watched, or cannot be.
func (w *watch) subscribed(ctx context.Context) error {
	t := time.NewTimer(watchTimeout)
	defer t.Stop()
	yes, no := 0, 0
	for yes < w.b.q {
		if no > len(w.b.nodes)-w.b.q {
			return errUnwatched
		}
		select {
		case err := <-w.ready:
			if err == nil {
				yes++
			} else {
				no++
			}
		case <-t.C:
			return errUnwatched
		case <-ctx.Done():
			return ctx.Err()
		case <-w.b.closed:
			return driver.ErrClosed
		}
	}
	return nil
}

// run wakes the caller when a majority announced, or, some time after it, a minority.
func (w *watch) run(ctx context.Context) {
	var told set
	asked := 0 // when the first node announced
	pause := minorityPause
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case i := <-w.news:
			if told == 0 {
				asked = w.b.waits.asked(w.key)
				timer.Reset(pause/2 + w.b.random(pause))
			}
			if told.add(i); told.len() < w.b.q {
				continue
			}
			pause = minorityPause
		case <-timer.C:
			pause = min(4*pause, maxMinorityPause)
			if w.b.waits.asked(w.key) != asked {
				told = 0
				continue
			}
		case <-ctx.Done():
			return
		case <-w.b.closed:
			w.wake()
			return
		}
		told = 0
		timer.Stop()
		w.wake()
	}
}

func (w *watch) wake() {
	select {
	case w.ch <- struct{}{}:
	default: // there is one already
	}
}
