// Package fault breaks things on purpose, for tests of drivers and of programs that
// use locks.
//
// A Proxy is placed between a client and a real server, and breaks their real connections:
//
//	p := fault.NewProxy(t, server.Addr())   // clients use p.Addr()
//	p.RTT(2 * time.Millisecond)             // delays, with jitter if wanted
//	p.Judge(fault.ToClient, fault.Lose(1, fault.Mute)) // the next request takes effect, its reply is lost
//	p.BlackHole()                           // accepts, and never answers
//	p.Refuse()                              // connection refused
//	p.Pause(); p.Resume()                   // a partition that heals
//	p.Restore()                             // all is well again
//
// Harness makes a redlocktest.Harness with proxies: each backend of a test has a proxy, with
// which the conformance suite breaks its link:
//
//	h := fault.Harness(server.Addr(), func(addr string) (driver.Backend, error) { return mydriver.New(addr) })
package fault
