// Package server starts real servers for tests and benchmarks: redis-server,
// valkey-server, postgres, pgbouncer, etcd, mariadbd and ZooKeeper, each on a free port of the
// loopback interface, in a temporary folder that goes with it.
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
// [Command] does the same for any other server, by its command line:
//
//	s := server.Command(t, []string{"consul", "agent", "-dev", "-http-port={port}"}, nil)
//
// A program that is not installed skips the test, with the command that brings it;
// where the environment variable CI is set it fails the test, so that nothing is
// green for lack of a server. Programs are looked for in PATH, and where Debian and
// Homebrew put those that they leave out of it.
//
// Nothing stays behind, even when the test is killed: every server has a guardian, a
// tiny shell that reads from a pipe whose other end this process alone holds. When
// this process ends, however it ends, the guardian kills the server and removes the
// folder. On Linux the kernel kills the server as well (PR_SET_PDEATHSIG).
//
// While a server runs, one goroutine waits for it. A leak detector is to ignore it:
//
//	goleak.IgnoreAnyFunction(server.Goroutine)
//
// The package imports no client library. It works on Linux and macOS; elsewhere it
// compiles, and Start returns ErrUnsupported.
package server
