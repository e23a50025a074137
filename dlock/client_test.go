package dlock_test

import (
	"testing"

	"github.com/redlock-go/redlock/dlock"
)

func lock(t *testing.T, c dlock.Locker, key string, opts ...dlock.LockOption) *dlock.Lease {
	t.Helper()
	l, err := c.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func unlock(t *testing.T, l *dlock.Lease) {
	t.Helper()
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
}
