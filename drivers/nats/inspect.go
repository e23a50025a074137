package nats

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// do calls f as one call.
func (b *Backend) do(ctx context.Context, f func(call *base.Call, k *bucket) error) error {
	return b.calls.Do(ctx, b.opt.CallTimeout, func(call *base.Call) error {
		k, err := b.bucket(call)
		if err == nil {
			err = f(call, k)
		}
		return err
	})
}

// Lookup returns the holder of key, and how many wait.
func (b *Backend) Lookup(ctx context.Context, key string) (s *driver.State, err error) {
	lock := name(b.opt.Prefix + key)
	err = b.do(ctx, func(call *base.Call, k *bucket) error {
		r, err := b.agreed(call, k, lock)
		if err != nil {
			return err
		}
		waiting, err := b.info(call, k, k.subject("w", lock)+".>")
		if err != nil {
			return err
		}
		s = b.state(k, key, r)
		s.Waiters = len(waiting.State.Subjects)
		return nil
	})
	return s, err
}

// agreed returns the last record of a lock, on which a majority agrees.
func (b *Backend) agreed(ctx context.Context, k *bucket, lock string) (record, error) {
	for {
		r, err := b.last(ctx, k, lock)
		if err == nil {
			err = b.confirm(ctx, k, lock, r.seq)
		}
		if !errors.Is(err, errConflict) || ctx.Err() != nil {
			return r, err
		}
	}
}

func (b *Backend) state(k *bucket, key string, r record) *driver.State {
	s := &driver.State{Key: key}
	switch {
	case r.Owner != "":
		s.Holders = []driver.Holder{{Owner: r.Owner, Fence: r.Token, TTL: r.left(k)}}
	case r.Next != "":
		s.ReservedFor = r.keptFor(k)
	}
	return s
}

// info returns the state of the bucket, with the subjects that match a filter.
func (b *Backend) info(ctx context.Context, k *bucket, filter string) (*jetstream.StreamInfo, error) {
	s, err := k.js.Stream(ctx, "KV_"+b.opt.Bucket)
	if err != nil {
		return nil, b.explain(err)
	}
	i, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
	return i, b.explain(err)
}

// List yields the held keys that begin with prefix, without their waiters.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	var all *jetstream.StreamInfo
	if err := b.do(ctx, func(call *base.Call, k *bucket) (err error) {
		if all, err = b.info(call, k, k.subject("k", "*")); err == nil {
			err = b.confirm(call, k, "", 0)
		}
		return err
	}); err != nil {
		return err
	}
	for subject := range all.State.Subjects {
		lock := subject[strings.LastIndexByte(subject, '.')+1:]
		full, err := url.QueryUnescape(lock)
		key, ours := strings.CutPrefix(full, b.opt.Prefix)
		if err != nil || !ours || !strings.HasPrefix(key, prefix) {
			continue
		}
		var s *driver.State
		if err := b.do(ctx, func(call *base.Call, k *bucket) error {
			r, err := b.last(call, k, lock)
			s = b.state(k, key, r)
			return err
		}); err != nil {
			return err
		}
		if len(s.Holders) > 0 && !yield(s) {
			return nil
		}
	}
	return nil
}

// Break frees the lock of the holder with this token, which learns of it at its next renewal.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	lock := name(b.opt.Prefix + key)
	return b.do(ctx, func(call *base.Call, k *bucket) error {
		r, err := b.agreed(call, k, lock)
		if err != nil {
			return err
		}
		if r.Owner == "" || r.Token != h.Fence {
			return driver.ErrLost
		}
		l := &lease{b: b, k: k, lock: lock, owner: r.Owner, seq: r.seq, grant: driver.Grant{Fence: h.Fence}}
		return l.release(call)
	})
}

// Check examines the server and the bucket.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	found := &base.Findings{Node: b.address}
	return found.Result(b.do(ctx, func(call *base.Call, k *bucket) error {
		sent := time.Now()
		info, err := b.info(call, k, k.subject("k", "none"))
		if err == nil {
			err = b.confirm(call, k, "", 0)
		}
		if err != nil {
			return err
		}
		replicas := strconv.Itoa(info.Config.Replicas)
		found.Clock(info.TimeStamp, sent)
		found.Add("sync-interval", driver.SeverityNote, "set sync_interval: always in the jetstream block of servers that may lose power at the same time",
			"a server writes to its disk every two minutes unless sync_interval says otherwise, which no client can see")
		if info.Config.Storage != jetstream.FileStorage {
			found.Add("memory-storage", driver.SeverityUnsafe, "delete the bucket while no lock is held, and this driver makes it anew", "a restart of the servers forgets all locks").Measured = "memory"
		}
		if info.Config.Replicas < 3 {
			found.Add("few-replicas", driver.SeverityWarning, "run three servers, and keep the bucket on three of them", "one server keeps the bucket: its locks wait while that server is away").Measured = replicas
		}
		return nil
	}))
}
