package file

import "github.com/redlock-go/redlock/dlock"

func init() { dlock.Register("file", Driver{}) }
