package nats

import "github.com/redlock-go/redlock/dlock"

func init() {
	dlock.Register("nats", Driver{})
	dlock.Register("tls", Driver{})
}
