package consul

import "github.com/redlock-go/redlock/dlock"

func init() {
	dlock.Register("consul", Driver{})
	dlock.Register("consuls", Driver{})
}
