package driver_test

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/redlock-go/redlock/"

// TestDependencyRules checks what each package may import, apart from tests: a program that
// imports one driver gets no other driver's dependencies.
func TestDependencyRules(t *testing.T) {
	const (
		goRedis   = "github.com/redis/go-redis/v9"
		valkey    = "github.com/valkey-io/valkey-go"
		pgx       = "github.com/jackc/pgx/v5"
		multi     = "github.com/hashicorp/go-multierror"
		errwrap   = "github.com/hashicorp/errwrap" // of go-multierror
		redisnode = "drivers/internal/redisnode"
		lua       = redisnode + "/lua"
		memory    = redisnode + "/memory"
		names     = redisnode + "/names"
		redisurl  = redisnode + "/redisurl"
		resp      = redisnode + "/resp"
		async     = "drivers/internal/async"
		pgurl     = "drivers/internal/pgurl"
		fencesql  = "dlock/fence/fencesql"
		dsn       = "driver/dsn"
		boot      = "driver/boot"
	)
	base := []string{"driver", "driver/base", "dlock", boot}
	pgxDeps := []string{pgx, "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "golang.org/x/text", "golang.org/x/sync"}
	rules := map[string][]string{ // the modules and own packages allowed
		"driver":             {"driver/quorum", "driver/printable"},
		"driver/quorum":      {"driver/printable"},
		"driver/printable":   {},
		"driver/dsn":         {"driver"},
		"driver/base":        {"driver"},
		"dlock":              {"driver", boot},
		"dlock/both":         base,
		"dlock/fence":        append(base, fencesql),
		"dlock/cli":          append(base, dsn, "golang.org/x/sys"),
		"drivers/memory":     append(base, dsn),
		"drivers/file":       append(base, dsn, "github.com/gofrs/flock", "golang.org/x/sys"),
		"drivers/redlock":    append(base, multi, errwrap, dsn, async),
		"drivers/goredis":    append(base, dsn, redisnode, lua, memory, names, redisurl, resp, async, goRedis, "github.com/cespare/xxhash/v2", "github.com/dgryski/go-rendezvous"),
		"drivers/valkeygo":   append(base, dsn, redisnode, lua, memory, names, redisurl, resp, async, valkey, "golang.org/x/sys"),
		lua:                  {"driver"},
		memory:               {"driver", lua},
		names:                {"driver", "driver/base"},
		redisurl:             {"driver", dsn},
		resp:                 {},
		pgurl:                append(pgxDeps, "driver", dsn),
		"drivers/postgres":   append(append(base, pgxDeps...), dsn, pgurl, "dlock/fence", fencesql, "github.com/jackc/puddle/v2"),
		"redlocktest":        {"driver", "redlocktest/internal/wallclock", "github.com/anishathalye/porcupine", "go.uber.org/goleak"},
		"redlocktest/cli":    append(base, dsn, "redlocktest", "redlocktest/fault", "redlocktest/internal/port", "redlocktest/internal/wallclock", "golang.org/x/sys", "github.com/anishathalye/porcupine", "go.uber.org/goleak"),
		"redlocktest/fault":  {"driver", "redlocktest", "redlocktest/internal/port", "redlocktest/internal/wallclock", "golang.org/x/sys", "github.com/anishathalye/porcupine", "go.uber.org/goleak"},
		"redlocktest/server": {"redlocktest/internal/port"},
	}
	args := []string{"list", "-f", `{{.ImportPath}} {{join .Deps " "}}`}
	for pkg := range rules {
		args = append(args, module+pkg)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = exit.Stderr
		}
		t.Fatalf("go list: %v\n%s", err, out)
	}
	listed := 0
	for line := range strings.Lines(string(out)) {
		listed++
		words := strings.Fields(line)
		pkg := strings.TrimPrefix(words[0], module)
		for _, dep := range words[1:] {
			if first, _, _ := strings.Cut(dep, "/"); !strings.Contains(first, ".") {
				continue // of the standard library
			}
			own := strings.TrimPrefix(dep, module)
			fits := func(a string) bool {
				return own == a || dep == a || a == "driver" && (own == "driver/quorum" || own == "driver/printable") || strings.Contains(a, ".") && strings.HasPrefix(dep, a+"/")
			}
			if !slices.ContainsFunc(rules[pkg], fits) {
				t.Errorf("%s imports %s", pkg, dep)
			}
		}
	}
	if listed != len(rules) {
		t.Errorf("go list shows %d packages of %d", listed, len(rules))
	}
}

// TestTopLevel checks that the module's top level has nothing but these names and dot-files.
func TestTopLevel(t *testing.T) {
	out, err := exec.Command("git", "-C", "..", "ls-tree", "--name-only", "HEAD").Output()
	if err != nil {
		return // a module cache is no repository
	}
	allowed := strings.Fields("LICENSE README.md benchmark dlock driver drivers go.mod go.sum redlocktest")
	for name := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(name, ".") && !slices.Contains(allowed, name) {
			t.Errorf("the top level has %s", name)
		}
	}
}
