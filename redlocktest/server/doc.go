// Package server starts real servers for tests and benchmarks: redis-server, valkey-server,
// postgres, pgbouncer, etcd, mariadbd, nats-server, Consul and ZooKeeper, each on a free port of the loopback
// interface, in a temporary folder that is removed with it.
//
// Its API is unstable: it may change in any release.
//
//	func TestSomething(t *testing.T) {
//		s := server.Redis(t)                    // stopped when the test ends
//		client := redis.NewClient(&redis.Options{Addr: s.Addr()})
//		…
//		s.Pause()                               // SIGSTOP
//		s.Kill(); s.Start()                     // a crash, and the restart after it
//		s.RestartEmpty()                        // a node that lost its memory
//	}
//
// Redis and Valkey can have a wall clock of their own, on Linux:
//
//	s := server.Redis(t, server.WithClock())
//	s.SetClock(time.Hour)                   // the clock jumps ahead
//
// [Command] starts any other server by its command line:
//
//	s := server.Command(t, []string{"consul", "agent", "-dev", "-http-port={port}"}, nil)
//
// If a program is not installed the test is skipped, with the command that installs it. If the
// environment variable CI is set the test fails instead, so that no test passes because a
// server is missing. Programs are searched in PATH, and in the folders outside it that Debian
// and Homebrew use.
//
// Nothing stays behind, even when the test is killed: every server has a guardian, a small
// shell that reads from a pipe whose other end only this process holds. When this process ends,
// for any reason, the guardian kills the server and removes the folder.
//
// While a server runs, one goroutine waits for it. redlocktest ignores it, and another leak
// detector must ignore it:
//
//	goleak.IgnoreAnyFunction(server.Goroutine)
//
// The package imports no client library. It works on Linux and macOS; elsewhere it
// compiles, and Start returns ErrUnsupported.
package server
