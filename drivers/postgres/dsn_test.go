package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/driver"
)

const canary = "s3cr3t"

func TestAURLIsReadAndItsAddressHasNoSecret(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:" + canary + "@h:1234/db":              "postgres://h:1234/db",
		"postgresql://u:" + canary + "@h/db?sslmode=disable": "postgres://h:5432/db",
		"postgres://u:s3%2Fcr%40t%3F@h:1,i:2/db":             "postgres://h:1/db",
		"postgres://h/db?user=u&password=" + canary:          "postgres://h:5432/db",
		"postgres://u@[::1]:7/db":                            "postgres://[::1]:7/db",
		"postgres://u@/db?host=/run/pg&port=7":               "postgres:///run/pg:7/db",
		"postgres:///db?host=h&user=us%27er":                 "postgres://h:5432/db",
		"postgres://u@h/db?fence_schema=s&max_conns=3":       "postgres://h:5432/db",
		"postgres://u@h/db?channel_binding=prefer&pool_max_conns=9&default_query_exec_mode=exec&timezone=UTC&statement_timeout=1&keepalives=1&keepalives_idle=30" +
			"&sslnegotiation=postgres&search_path=nowhere&gssencmode=disable": "postgres://h:5432/db", // as providers and pools write
		"postgres://u@/db?host=a,b&port=1,2":                                 "postgres://a:1/db",
		"postgres://u@/db?host=a,b&port=3":                                   "postgres://a:3/db",
		"postgres://u@h/db?channel_binding=require&sslmode=require":          "postgres://h:5432/db",
		"postgres://u@h/db?connect_timeout=3&application_name=x&options=-cx": "postgres://h:5432/db",
	} {
		b, err := new(Driver).Open(&driver.Config{DSN: url})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got := b.(*Backend).String(); got != want {
			t.Errorf("%s: String gives %s", url, got)
		}
		_ = b.Close()
	}
}

func TestABadURLNamesTheBadPartAndNeverThePassword(t *testing.T) {
	t.Parallel()
	for url, part := range map[string]string{
		"postgres:" + canary:                                                        "URL",
		"postgres://u:" + canary + "/x@h/db":                                        "URL",
		"postgres://u:" + canary + "?x@h/db":                                        "URL",
		"postgres://u:" + canary + "#x@h/db":                                        "URL",
		"postgres://u:%zz" + canary + "@h/db":                                       "URL",
		"postgres://u:1/" + canary + "@h/db":                                        "URL",
		"postgres://u:p@h:" + canary + "/db":                                        "URL",
		"postgres://u:p@h/db?max_sesions=3":                                         `"max_sesions"`,
		"postgres://u:p@h/db?max_conns=1":                                           `"max_conns"`,
		"postgres://u:p@h/db?max_conns=" + canary:                                   `"max_conns"`,
		"postgres://u:p@h/db?pool_max_con=3":                                        `"pool_max_con"`,
		"postgres://u:p@h/db?channel_binding=" + canary:                             "URL",
		"postgres://u:p@h/db?port=1,x":                                              `"port"`,
		"postgres://u:p@/db?host=a,b,c&port=1,2":                                    `"port"`,
		"postgres://u:p@h/db?pooler=transaction":                                    `"pooler"`,
		"postgres://u:p@h/db?fence_schema=a;DROP":                                   "fence_schema",
		"postgres://u:p@h/db?restart_guard=1":                                       `"restart_guard"`,
		"postgres://u:p@h/db?sslmode=" + canary + "x":                               "URL",
		"postgres://u:" + canary + "@h/db?sslmode=wrong":                            "URL",
		"postgres://u:" + canary + "@h/db?sslrootcert=/nowhere&sslmode=verify-full": "URL",
		"postgres://u:" + canary + "@h/db?idle_session_timeout=0":                   `"idle_session_timeout"`,
	} {
		_, err := new(Driver).Open(&driver.Config{DSN: url})
		switch {
		case !errors.Is(err, driver.ErrInvalid):
			t.Errorf("%s: got %v", url, err)
		case !strings.Contains(err.Error(), part):
			t.Errorf("%s: the error does not name %s: %v", url, part, err)
		case strings.Contains(err.Error(), canary):
			t.Errorf("%s: the error quotes the secret: %v", url, err)
		}
	}
}
