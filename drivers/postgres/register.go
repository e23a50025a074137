package postgres

import "github.com/redlock-go/redlock/dlock"

func init() {
	dlock.Register("postgres", &Driver{})
	dlock.Register("postgresql", &Driver{})
}
