package nats

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redlock-go/redlock/driver"
)

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
