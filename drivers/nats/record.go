package nats

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// maxMessage bounds what is stored in one message: an owner is much shorter.
const maxMessage = 4096

// A record is the last message about a lock.
type record struct {
	Owner string `json:"owner,omitempty"`    // empty: the lock is free
	Token uint64 `json:"token,omitempty"`    // zero in the message that took the lock: its number and the bucket's base
	Since int64  `json:"since_us,omitempty"` // zero in that message: its time
	Next  string `json:"next,omitempty"`     // of a free lock: the waiter for whom it is kept

	seq     uint64 // zero: there is no message
	at      time.Time
	ttl     time.Duration
	expired bool // the server ended the lock
}

// left is how long the lock lasts unless it is renewed.
func (r *record) left(k *bucket) time.Duration { return max(r.at.Add(r.ttl).Sub(k.now()), 0) }

// keptFor is how much longer a free lock is kept for a waiter.
func (r *record) keptFor(k *bucket) time.Duration {
	return min(max(r.at.Add(reserve).Sub(k.now()), 0), reserve)
}

func (r *record) holder(k *bucket) driver.Holder {
	return driver.Holder{Owner: r.Owner, Fence: r.Token, Since: time.UnixMicro(r.Since), TTL: r.left(k)}
}

func (r *record) held(k *bucket) *driver.HeldError {
	return &driver.HeldError{Holder: r.Owner, RetryAfter: r.left(k), Since: time.UnixMicro(r.Since), Clock: k.now()}
}

// headerOp is the header of a message that says that a lock is free, as the client's buckets have it.
const headerOp = "KV-Operation"

// parse reads a message about a lock. What is not understood is a lock of somebody unknown.
func parse(header nats.Header, data []byte) record {
	var r record
	if header.Get(jetstream.MarkerReasonHeader) != "" {
		r.expired = true
		return r
	}
	free := header.Get(headerOp) != ""
	if len(data) > maxMessage || json.Unmarshal(data, &r) != nil || !free && r.Owner == "" ||
		r.Token > driver.MaxFence || r.Since < 0 || r.Since > driver.MaxFence {
		r = record{Owner: "unknown"}
	}
	if free {
		r.Owner, r.Token, r.Since = "", 0, 0
	}
	if ttl, err := time.ParseDuration(header.Get(jetstream.MsgTTLHeader)); err == nil {
		r.ttl = min(max(ttl, 0), 2*maxTTL)
	}
	return r
}

// request makes a request. It first waits for the connection: a connection may keep a request that it
// cannot send, until nobody can undo what it does.
func (b *Backend) request(ctx context.Context, k *bucket, f func(ctx context.Context) error) error {
	return b.explain(base.Again(ctx, leaderless, func(ctx context.Context) error {
		for !k.nc.IsConnected() {
			if !base.Pause(ctx, 10*time.Millisecond) {
				return nats.ErrReconnectBufExceeded
			}
		}
		b.complaint.Store(nil)
		return f(ctx)
	}))
}

// get returns a message: the last one of a subject, or with from the first one of subjects whose
// number is at least from. The leader of the bucket answers, so that a server that lags behind does
// not.
func (b *Backend) get(ctx context.Context, k *bucket, subject string, from uint64) (subjectOf string, r record, err error) {
	var m *jetstream.RawStreamMsg
	err = b.request(ctx, k, func(ctx context.Context) (err error) {
		if from > 0 {
			m, err = k.s.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
		} else {
			m, err = k.s.GetLastMsgForSubject(ctx, subject)
		}
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			m, err = &jetstream.RawStreamMsg{}, nil
		}
		return err
	})
	if err != nil || m.Sequence == 0 {
		return "", r, err
	}
	r = parse(m.Header, m.Data)
	r.seq, r.at = m.Sequence, m.Time
	if r.Token == 0 {
		r.Token, r.Since = k.base+r.seq, r.at.UnixMicro()
	}
	return m.Subject, r, nil
}

// last returns the last record of a lock.
func (b *Backend) last(ctx context.Context, k *bucket, lock string) (record, error) {
	_, r, err := b.get(ctx, k, k.subject("k", lock), 0)
	return r, err
}

// put stores a message, if the last one of its subject has this number; 0: if there is none. It
// returns the number of the new one, which is larger than that of every message before.
func (b *Backend) put(ctx context.Context, k *bucket, subject string, expected uint64, ttl time.Duration, r record) (uint64, error) {
	m := nats.NewMsg(subject)
	m.Header.Set(jetstream.MsgTTLHeader, strconv.FormatInt(int64((ttl+time.Second-1)/time.Second), 10)+"s")
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(expected, 10))
	if r.Owner == "" {
		m.Header.Set(headerOp, "DEL")
	}
	var err error
	if m.Data, err = json.Marshal(&r); err != nil {
		return 0, err
	}
	return b.publish(ctx, k, m)
}

// publish stores a message, and returns its number.
func (b *Backend) publish(ctx context.Context, k *bucket, m *nats.Msg) (seq uint64, err error) {
	err = b.request(ctx, k, func(ctx context.Context) error {
		ack, err := k.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
		if err == nil {
			seq = ack.Sequence
		}
		return err
	})
	return seq, err
}

// confirm returns nil if a majority agrees that the last message of a lock has this number, and
// errConflict if it has another one. (A leader that was cut off answers get from old data.) Without a
// lock it only asks whether a majority serves.
func (b *Backend) confirm(ctx context.Context, k *bucket, lock string, seq uint64) error {
	m := nats.NewMsg(k.subject("c", b.id))
	m.Header.Set(jetstream.MsgTTLHeader, "1s")
	if lock != "" {
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(seq, 10))
		m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, k.subject("k", lock))
	}
	_, err := b.publish(ctx, k, m)
	return err
}

// purge deletes the messages of subjects, which may have wildcards.
func (b *Backend) purge(ctx context.Context, k *bucket, subjects string) error {
	return b.request(ctx, k, func(ctx context.Context) error { return k.s.Purge(ctx, jetstream.WithPurgeSubject(subjects)) })
}
