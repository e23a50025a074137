//go:build !linux && !darwin

package file

// networkKind names the network file system that path is on; empty: none that is known.
func networkKind(string) string { return "" }
