package valkeygo

import "github.com/redlock-go/redlock/dlock"

func init() {
	dlock.Register("valkey", Driver{})
	dlock.Register("valkeys", Driver{})
	dlock.Register("valkey+unix", Driver{})
}
