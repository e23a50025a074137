// Package trackrecord tests that the locks of redsync and redislock and ours exclude each other on one
// server, so that services can migrate one at a time. It is a module of its own, so that users of this
// library do not get the other libraries as dependencies. README.md tells what the conformance suite
// has found.
package trackrecord
