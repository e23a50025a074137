package file

import "syscall"

// bootID identifies the time since the machine was started; empty: unknown.
func bootID() string {
	id, err := syscall.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
}
