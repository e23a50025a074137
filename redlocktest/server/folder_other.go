//go:build !linux

package server

// memoryFolder returns "", the system's temporary folder.
func memoryFolder() string { return "" }
