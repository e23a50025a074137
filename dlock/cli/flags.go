package cli

import (
	"errors"
	"time"
)

// duration is a flag that is at least zero. Its errors do not quote the value.
type duration time.Duration

func (d *duration) Type() string { return "duration" }

// String of zero is what pflag takes for no default.
func (d *duration) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

func (d *duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return errors.New("must be a duration such as 90s or 2h30m")
	}
	*d = duration(v)
	return nil
}

// patience is the flag --wait: for how long to wait for the lock.
type patience time.Duration

const forever patience = -1

func (p *patience) Type() string { return "duration" }

func (p *patience) String() string {
	if *p == forever {
		return "forever"
	}
	return time.Duration(*p).String()
}

func (p *patience) Set(s string) error {
	if s == "forever" {
		*p = forever
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return errors.New("must be 0, a duration such as 90s or 2h30m, or forever")
	}
	*p = patience(v)
	return nil
}
