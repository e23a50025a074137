//go:build !linux && !darwin

package file

// bootID identifies the time since the machine was started; empty: unknown.
func bootID() string { return "" }

// networkKind names the network file system that has path; empty: no known one.
func networkKind(string) string { return "" }
