package cli

import (
	"errors"
	"strconv"
	"time"
)

// durationFlag is a duration of at least zero. Its errors do not quote the value.
type durationFlag time.Duration

func (d *durationFlag) Type() string { return "duration" }

// String returns for zero the text that pflag takes for no default.
func (d *durationFlag) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

func (d *durationFlag) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return errors.New("must be a duration such as 90s or 2h30m")
	}
	*d = durationFlag(v)
	return nil
}

// exitCodeFlag is an exit code.
type exitCodeFlag int

func (c *exitCodeFlag) Type() string   { return "int" }
func (c *exitCodeFlag) String() string { return strconv.Itoa(int(*c)) }

func (c *exitCodeFlag) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return errors.New("must be an exit code, 0 to 255")
	}
	*c = exitCodeFlag(n)
	return nil
}

// waitFlag is the flag --wait: how long to wait for the lock.
type waitFlag time.Duration

const forever waitFlag = -1

func (p *waitFlag) Type() string { return "duration" }

func (p *waitFlag) String() string {
	if *p == forever {
		return "forever"
	}
	return time.Duration(*p).String()
}

func (p *waitFlag) Set(s string) error {
	if s == "forever" {
		*p = forever
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return errors.New("must be 0, a duration such as 90s or 2h30m, or forever")
	}
	*p = waitFlag(v)
	return nil
}

// slotsFlag is the flag --slots: how many may hold the key; zero: it was not given.
type slotsFlag int

func (n *slotsFlag) Type() string { return "int" }

// String returns for zero the text that pflag takes for no default.
func (n *slotsFlag) String() string { return strconv.Itoa(int(*n)) }

func (n *slotsFlag) Set(s string) error {
	v, err := strconv.ParseUint(s, 10, 16)
	if err != nil || v < 1 || v > 1024 {
		return errors.New("must be a number of slots, 1 to 1024")
	}
	*n = slotsFlag(v)
	return nil
}
