package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	Owner string `json:"owner,omitempty"` // empty: the lock is free
	Token uint64 `json:"token,omitempty"` // zero in the message that took the lock: its number and the bucket's base
	Next  string `json:"next,omitempty"`  // of a free lock: the waiter for whom it is kept

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
	if len(data) > maxMessage || json.Unmarshal(data, &r) != nil || !free && r.Owner == "" || r.Token > driver.MaxFence {
		r = record{Owner: "unknown"}
	}
	if free {
		r.Owner, r.Token = "", 0
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
		r.Token = k.base + r.seq
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

// JetStream's errors that have no name in its client.
const (
	codeUnavailable     jetstream.ErrorCode = 10008
	codeOffline         jetstream.ErrorCode = 10118
	codeConcurrentWrite jetstream.ErrorCode = 10164
)

var (
	// errUnsent says that no server took a request: it will have no effect.
	errUnsent = errors.New("no server took the request")
	// errConflict says that the last message of a subject is another one: nothing was stored.
	errConflict = errors.New("another client was first")
)

// noEffect reports whether a request with this error certainly had no effect, and will have none.
func noEffect(err error) bool {
	return errors.Is(err, errConflict) || errors.Is(err, driver.ErrRefused) || errors.Is(err, errUnsent)
}

// leaderless reports whether no server took the request.
func leaderless(err error) bool {
	var answer *jetstream.APIError
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.As(err, &answer) && (answer.ErrorCode == codeUnavailable || answer.ErrorCode == codeOffline)
}

// explain returns the error of this driver for one of the client's.
func (b *Backend) explain(err error) error {
	if err == nil || errors.Is(err, driver.ErrRefused) {
		return err
	}
	refused := func(wait time.Duration, reason string) error {
		return &driver.RefusedError{Reason: reason, RetryAfter: wait, Err: oneLine(err)}
	}
	var api *jetstream.APIError
	errors.As(err, &api)
	said := b.complaint.Load()
	switch {
	case api == nil && said != nil && errors.Is(*said, nats.ErrPermissionViolation):
		err = *said
		return refused(0, "the user lacks a permission: see the package's documentation")
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAccountAuthExpired):
		return refused(0, "the server refuses the user or the password")
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrNoServers):
		return fmt.Errorf("%w: no connection to %s", errUnsent, b.address)
	case leaderless(err):
		b.forget()
		return fmt.Errorf("%w: none of %s has the bucket, or they elect a leader", errUnsent, b.address)
	case api == nil:
		return oneLine(err)
	}
	switch api.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, codeConcurrentWrite:
		return errConflict
	case jetstream.JSErrCodeStreamNotFound:
		b.forget()
		return oneLine(err)
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return refused(0, "JetStream is off: enable it on the server and for the account")
	}
	return refused(time.Second, "JetStream has too little storage, too few servers, or another trouble")
}

// forget looks for the bucket again at the next call: it may have been deleted, and made anew.
func (b *Backend) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bound = nil
}

// oneLine keeps what a server said on one line, within bounds, without the client's name.
func oneLine(err error) error {
	return fmt.Errorf("%.300s", strings.ReplaceAll(strings.Join(strings.Fields(err.Error()), " "), "nats: ", ""))
}
