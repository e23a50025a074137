//go:build !linux

package server

// memoryFolder returns "", which stands for the system's temporary folder.
func memoryFolder() string { return "" }
