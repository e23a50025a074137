// Package valkeygo keeps locks in a single instance of Redis or Valkey, through
// github.com/valkey-io/valkey-go. A single instance is one server, a primary that Sentinel
// watches, or a Cluster. Package drivers/redlock takes a majority vote over several independent
// servers, with backends of this package as nodes.
//
//	import _ "github.com/redlock-go/redlock/drivers/valkeygo"
//
//	c, err := dlock.OpenURL("valkey://localhost:6379/0")
//
// or with the application's own client, which the backend never closes:
//
//	b, err := valkeygo.New(client, nil)   // a valkey.Client
//	c, err := dlock.New(b)
//
// # URLs
//
//	valkey://user:password@host:6379/0?…     one server; valkeys:// with TLS
//	valkey+unix:///run/server.sock?db=0      a unix socket
//	valkey://h1:26379,h2:26379/0?topology=sentinel&master=NAME
//	valkey://h1:6379,h2:6379?topology=cluster
//
// The scheme names the client library, not the server: both libraries work with both servers.
// Hosts are separated by commas (%2C inside a redlock: URL). In a user or password,
// percent-encode % / ? # @, and in a user also ':'. Every URL takes ttl and prefix; the other
// parameters are:
//
//	topology           single (default), sentinel or cluster
//	master             sentinel: the name of the primary
//	sentinel_user      sentinel: the user of the sentinels themselves
//	sentinel_password  sentinel: the password of the sentinels
//	db                 unix sockets: the database
//	ca                 TLS: a file of PEM certificates to trust instead of the system's
//	cert, key          TLS: files of the client's certificate
//	server_name        TLS: the name to expect in the server's certificate
//	insecure           TLS: true does not verify the server's certificate
//	dial_timeout       for making a connection (1s)
//	call_timeout       for one call to the server (1s); half of the TTL bounds it too
//	pool_size          connections at most (10)
//	restart_guard      a lone server: for how long it grants nothing after a restart (off)
//	bootstrap          a lone server with a guard is new, unless it has a memory (false: then it
//	                   counts as restarted)
//	wait_replicas      how many replicas must have a lock before it counts as granted (0)
//	durable            it forgets nothing that it acknowledged: appendfsync always (false)
//
// An unknown parameter is an error that names it. No error shows a password.
//
// # What is stored, waiting, time, and what can be lost
//
// This package and package goredis differ only in the client library. They store the same data, so
// that their locks exclude each other. The documentation of package
// [github.com/redlock-go/redlock/drivers/goredis] describes for both what is stored, which rights
// an ACL user needs, how waiters are served, how requests get their deadlines, and when a lock can
// be lost. The backend's Check reports a deployment that can lose locks.
//
// # Transport
//
// At most two round trips are under way to one server. Calls that come while others are under way
// are gathered, and go together as one script. A client made from a URL gives each round trip a
// connection of its own (DisableAutoPipelining), because the library closes a connection when a
// call's deadline expires, and other calls would share it. A lone call then runs on its caller's
// goroutine, and notices a cancellation within 100 ms. With an application's client the library
// gets no deadlines: the caller returns in time, and the call ends by the client's
// ConnWriteTimeout. So calls run on another goroutine there, which costs a lone caller 40 to 50
// µs an acquire instead of 28. While a server does not answer, only one call at a time is under
// way to it. An idle backend has no goroutine. Waiting costs one connection per
// backend (in a Cluster, one per server whose keys have waiters) and one subscription per key;
// both end with the last waiter.
package valkeygo
