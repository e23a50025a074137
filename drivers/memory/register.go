package memory

import "github.com/redlock-go/redlock/dlock"

func init() { dlock.Register("memory", &Driver{}) }
