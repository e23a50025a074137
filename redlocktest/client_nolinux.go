//go:build !linux

package redlocktest

import "syscall"

// dieWithUs does nothing: a process that is not stopped ends at the end of its input.
func dieWithUs() *syscall.SysProcAttr { return nil }
