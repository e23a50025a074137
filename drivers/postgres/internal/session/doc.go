// Package session has the connections of the backend: each has many leases, sends one round of
// statements at a time, and renews all its leases with any answer of the server.
//
//	callers ──► session.go: queue ──► round.go: statements ──► wire
//	                 ▲                                           │
//	                 └── answers ──── reader.go ◄────────────────┘
//
// A lease is in lease.go, and the TTLs of sessions are in class.go. A session that holds nothing
// can be reserved to wait for one lock, in slice.go.
package session
