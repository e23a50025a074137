//go:build !linux && !darwin

package file

// bootID identifies the time since the machine was started; empty: unknown.
func bootID() string { return "" }
