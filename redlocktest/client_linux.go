package redlocktest

import "syscall"

// dieWithUs makes the kernel kill a process, even a stopped one, when the thread that started
// it ends. The process does not get interrupts from the terminal.
func dieWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
