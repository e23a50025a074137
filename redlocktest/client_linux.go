package redlocktest

import "syscall"

// dieWithUs makes the kernel kill a process when the thread that started it ends, be the process
// stopped or not. An interrupt from the terminal is not for it.
func dieWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
