package cli

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
)

// form is the form of a driver's URLs, and an example that can be opened to get its features.
type form struct{ text, sample string }

// forms has the URL forms of this module's drivers; those of other drivers are "name://…".
var forms = map[string]form{
	"memory":      {"memory:  memory:NAME  (one process: for trying things out)", "memory:"},
	"file":        {"file:  file:///FOLDER  (one machine)", "file:"},
	"redis":       {"redis://[USER:PASSWORD@]HOST:PORT/DB", "redis://localhost:6379/0"},
	"rediss":      {"rediss://…  (TLS)", "rediss://localhost:6379/0"},
	"redis+unix":  {"redis+unix:///SOCKET", "redis+unix:///run/redis.sock"},
	"valkey":      {"valkey://[USER:PASSWORD@]HOST:PORT/DB", "valkey://localhost:6379/0"},
	"valkeys":     {"valkeys://…  (TLS)", "valkeys://localhost:6379/0"},
	"valkey+unix": {"valkey+unix:///SOCKET", "valkey+unix:///run/valkey.sock"},
	"redlock":     {"redlock:redis://A:6379,redis://B:6379,valkey://C:6379,NAME=VALUE  (a majority of servers)", "redlock:memory:a,memory:b,memory:c"},
	"postgres":    {"postgres://[USER:PASSWORD@]HOST:PORT/DB", "postgres://localhost:5432/postgres"},
	"postgresql":  {"postgresql://…  (the same)", "postgresql://localhost:5432/postgres"},
	"etcd":        {"etcd://[USER:PASSWORD@]HOST:PORT,HOST:PORT/PATH", "etcd://localhost:2379"},
	"etcds":       {"etcds://…  (TLS)", "etcds://localhost:2379"},
	"zk":          {"zk://[USER:PASSWORD@]HOST:PORT,HOST:PORT/PATH", "zk://localhost:2181"},
	"zks":         {"zks://…  (TLS)", "zks://localhost:2181"},
	"mysql":       {"mysql://[USER:PASSWORD@]HOST:PORT/DB  (a table)", "mysql://user@localhost:3306/mysql"},
	"mariadb":     {"mariadb://…  (the same)", "mariadb://user@localhost:3306/mysql"},
	"pgtable":     {"pgtable://[USER:PASSWORD@]HOST:PORT/DB  (a table, behind poolers too)", "pgtable://localhost:5432/postgres"},
	"sqlite":      {"sqlite:///FILE  (a table, one machine)", "sqlite:///locks.db"},
}

func newDrivers() *cobra.Command {
	return &cobra.Command{
		Use:   "drivers",
		Short: "List the drivers, their features and the forms of their URLs",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows := [][]string{{"DRIVER", "FEATURES", "URL"}}
			for _, name := range dlock.Drivers() {
				f, ok := forms[name]
				if !ok {
					f = form{text: name + "://…", sample: name + "://localhost"}
				}
				rows = append(rows, []string{name, features(f.sample), f.text})
			}
			writeTable(cmd.OutOrStdout(), "", rows)
			return nil
		},
	}
}

// features returns the features of a URL's backend, which it opens and does not use.
func features(sample string) string {
	b, err := dlock.OpenBackend(sample)
	if err != nil {
		return "?"
	}
	defer b.Close() //nolint:errcheck // it was not used
	if f := b.Info().Features.String(); f != "" {
		return f
	}
	return "-"
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), "dlock", version())
			return nil
		},
	}
}

// module is the path of this package's module.
const module = "github.com/redlock-go/redlock"

// version returns the versions of this module and of Go.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown version)"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			return m.Version + " " + info.GoVersion
		}
	}
	return "(unknown version) " + info.GoVersion
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return failf(exitUsage, "%s takes no arguments", cmd.CommandPath())
	}
	return nil
}
