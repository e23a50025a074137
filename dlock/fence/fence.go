package fence

import (
	"context"
	"errors"
	"fmt"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// A Store remembers the largest token that it has seen for each resource.
type Store interface {
	// Raise sets the mark of resource to token if the mark is smaller or missing, and returns
	// the resulting mark: token, or a larger one that was seen before. It must be atomic with
	// the write that it guards: no other Raise may take effect between the two. A transaction
	// does that, or one command that compares and writes.
	//
	// An error says that the store could not be asked, or that it is unknown whether the mark
	// was raised. The caller must not write after an error.
	Raise(ctx context.Context, resource string, token uint64) (seen uint64, err error)
}

// ErrStale says that the store has seen a larger token: another owner has had the lock since,
// and the write must not be made. errors.As finds a *StaleError.
var ErrStale = errors.New("stale fencing token")

// StaleError is ErrStale, with the tokens.
type StaleError struct {
	Resource string
	Token    uint64 // the caller's
	Seen     uint64 // the largest that the store has seen
	_        struct{}
}

// Error returns one line with both tokens.
func (e *StaleError) Error() string {
	return fmt.Sprintf("fence: %q: token %d is stale: the store has seen %d, so another owner has had the lock since", e.Resource, e.Token, e.Seen)
}

// Is reports that a StaleError is ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// Token returns the fencing token of the lease of key that ctx derives from, inside dlock.Do or
// from Lease.Context. It makes no request.
//
// The error is dlock.ErrInvalid if ctx derives from no lease of key, or if the backend has no
// tokens. If the lease has ended it is the lease's Err (dlock.ErrLost, dlock.ErrReleased).
func Token(ctx context.Context, key string) (uint64, error) {
	lease, ok := dlock.LeaseFor(ctx, key)
	if !ok {
		return 0, fmt.Errorf("fence: %w", driver.Invalid("context", "derives from no lease of %q: call this inside dlock.Do for that key", key))
	}
	if err := lease.Err(); err != nil {
		return 0, fmt.Errorf("fence: %q: %w", key, err)
	}
	if lease.Fence() == 0 {
		return 0, fmt.Errorf("fence: %w", driver.Invalid("lease", "of %q has no token: use a backend with driver.FeatureFencing, and dlock.WithRequire to make sure of it", key))
	}
	return lease.Fence(), nil
}

// Check raises the mark of resource to token, and returns nil if the write that follows, in
// the same transaction, may be made. An equal token passes, so that one lease may write more
// than once.
//
// A *StaleError, which is ErrStale, says that the store has seen a larger token: do not write,
// roll back, and stop, because another owner has the lock. Token 0 is dlock.ErrInvalid, without
// a request. Any other error is the store's.
func Check(ctx context.Context, s Store, resource string, token uint64) error {
	if err := valid(token); err != nil {
		return err
	}
	seen, err := s.Raise(ctx, resource, token)
	switch {
	case err != nil:
		return fmt.Errorf("fence: %q: %w", resource, err)
	case seen > token:
		return &StaleError{Resource: resource, Token: token, Seen: seen}
	case seen < token:
		return fmt.Errorf("fence: %q: the store did not raise its mark: it is %d after token %d", resource, seen, token)
	}
	return nil
}

func valid(token uint64) error {
	switch {
	case token == 0:
		return fmt.Errorf("fence: %w", driver.Invalid("token", "is 0: the lease has none"))
	case token > driver.MaxFence:
		return fmt.Errorf("fence: %w", driver.Invalid("token", "%d is over the largest token, %d", token, uint64(driver.MaxFence)))
	}
	return nil
}
