package postgres_test

import (
	"testing"

	"github.com/redlock-go/redlock/drivers/internal/pgurl"
)

// TestTheEnvironment is here so that package pgurl needs no test binary of its own, with the client in
// it. Parts that a URL leaves out come from the environment. Of several hosts the primary is looked for,
// wherever they are named.
func TestTheEnvironment(t *testing.T) {
	t.Setenv("PGHOST", "a,b")
	t.Setenv("PGPORT", "1,2")
	for url, want := range map[string]struct {
		address string
		several bool
	}{
		"pg:///db":       {"pg://a:1/db", true},
		"pg://u:p@/db":   {"pg://a:1/db", true},
		"pg://h/db":      {"pg://h:5432/db", false},
		"pg://h:1,h:2/d": {"pg://h:1/d", true},
	} {
		u, err := pgurl.Parse(url, nil, "pg")
		if err != nil {
			t.Fatal(err)
		}
		c, err := u.Config()
		if err != nil || pgurl.Address("pg", c) != want.address || (c.ValidateConnect != nil) != want.several {
			t.Errorf("%s is %s, %v", url, pgurl.Address("pg", c), err)
		}
	}
}
