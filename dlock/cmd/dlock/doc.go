// Command dlock runs a command under a distributed lock, so that only one copy runs at a time, on
// one machine or across machines:
//
//	dlock run nightly -- /usr/local/bin/nightly-report
//
// Its manual is the documentation of package
// [github.com/redlock-go/redlock/dlock/cli]; "dlock help" prints it, part by part.
package main
