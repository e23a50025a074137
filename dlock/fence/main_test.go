package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// The servers of this package's examples, which have no testing.T to skip with.
var (
	postgresServer, redisServer *server.Server
	database                    *sql.DB // of postgresServer
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	start := func(s **server.Server, kind server.Kind) error {
		var err error
		*s, err = server.Start(context.Background(), server.Config{Kind: kind})
		return err
	}
	err := errors.Join(start(&postgresServer, server.KindPostgres), start(&redisServer, server.KindRedis))
	for _, s := range []*server.Server{postgresServer, redisServer} {
		if s != nil {
			defer s.Close() //nolint:errcheck // the tests are over
		}
	}
	var missing *server.MissingError
	switch {
	case errors.As(err, &missing) && os.Getenv("CI") == "":
		fmt.Println("without the examples and tests on servers:", err)
		_ = flag.Set("test.skip", "^(Example(Tx|Row|RedisScript)|Test(SQL|AnOld|TheScript|TheLateWrite).*)$")
		return m.Run()
	case err != nil:
		fmt.Println(err)
		return 1
	}
	if database, err = sql.Open("pgx", postgresServer.URL()); err != nil {
		fmt.Println(err)
		return 1
	}
	defer database.Close() //nolint:errcheck // the server ends
	return m.Run()
}
