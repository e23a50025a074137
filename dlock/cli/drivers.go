package cli

import (
	"github.com/redlock-go/redlock/dlock"
)

// forms has the forms of the URLs of this module's drivers, and a remark. A form can be opened.
// Those of other drivers are "name://…".
var forms = map[string][2]string{
	"memory":      {"memory:NAME", "one process: for trying things out"},
	"file":        {"file:///FOLDER", "one machine; file: is a folder of this user"},
	"redis":       {"redis://USER:PASSWORD@HOST:6379/0"},
	"rediss":      {"rediss://USER:PASSWORD@HOST:6379/0", "TLS"},
	"redis+unix":  {"redis+unix:///SOCKET"},
	"valkey":      {"valkey://USER:PASSWORD@HOST:6379/0"},
	"valkeys":     {"valkeys://USER:PASSWORD@HOST:6379/0", "TLS"},
	"valkey+unix": {"valkey+unix:///SOCKET"},
	"redlock":     {"redlock:redis://A:6379,redis://B:6379,valkey://C:6379", "a majority of servers; options follow as ,NAME=VALUE"},
	"both":        {"both:memory:OLD memory:NEW", "two backends, to change from one to the other"},
	"postgres":    {"postgres://USER:PASSWORD@HOST:5432/DB"},
	"postgresql":  {"postgresql://USER:PASSWORD@HOST:5432/DB", "the same"},
	"etcd":        {"etcd://USER:PASSWORD@HOST:2379,HOST:2379/PATH"},
	"etcds":       {"etcds://USER:PASSWORD@HOST:2379,HOST:2379/PATH", "TLS"},
	"zk":          {"zk://USER:PASSWORD@HOST:2181,HOST:2181/PATH"},
	"zks":         {"zks://USER:PASSWORD@HOST:2181,HOST:2181/PATH", "TLS"},
	"mysql":       {"mysql://USER:PASSWORD@HOST:3306/DB", "a table"},
	"mariadb":     {"mariadb://USER:PASSWORD@HOST:3306/DB", "the same"},
	"pgtable":     {"pgtable://USER:PASSWORD@HOST:5432/DB", "a table, behind poolers too"},
	"sqlite":      {"sqlite:///FILE", "a table, one machine"},
}

func newDrivers(c *call) func() error {
	return func() error {
		if err := c.want(0, 0); err != nil {
			return err
		}
		rows := [][]string{{"DRIVER", "FEATURES", "URL", "REMARK"}}
		for _, name := range dlock.Drivers() {
			form, ours := forms[name]
			if !ours {
				form[0] = name + "://HOST"
			}
			features := "?"
			if b, err := dlock.OpenBackend(form[0]); err == nil {
				features = b.Info().Features.String()
				_ = b.Close() // it was not used
			}
			rows = append(rows, []string{name, features, form[0], form[1]})
		}
		writeTable(c.out, "", rows)
		return nil
	}
}
