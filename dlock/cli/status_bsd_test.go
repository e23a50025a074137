//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package cli

import (
	"os/exec"
	"strconv"
)

// status is the letter of a process's state; zero: there is none.
func status(pid int) byte {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	if err != nil || len(out) == 0 {
		return 0
	}
	return out[0]
}
