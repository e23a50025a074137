//go:build !linux

package redlocktest

import "syscall"

// dieWithUs: a process that is not stopped ends when its input does.
func dieWithUs() *syscall.SysProcAttr { return nil }
