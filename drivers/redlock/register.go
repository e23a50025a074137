package redlock

import "github.com/redlock-go/redlock/dlock"

func init() { dlock.Register("redlock", Driver{}) }
