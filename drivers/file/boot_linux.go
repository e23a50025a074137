package file

import (
	"os"
	"strings"
)

// bootID identifies the time since the machine was started; empty: unknown.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
