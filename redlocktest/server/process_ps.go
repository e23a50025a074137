//go:build unix && !linux

package server

import (
	"os/exec"
	"strconv"
	"strings"
)

// state returns a process's state as ps prints it; empty if there is none.
func state(pid int) (string, error) {
	out, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return strings.TrimSpace(string(out)), err
}

func isZombie(pid int) bool {
	s, err := state(pid)
	return err == nil && strings.HasPrefix(s, "Z")
}

func isStopped(pid int) (bool, error) {
	s, err := state(pid)
	return strings.HasPrefix(s, "T") || strings.HasPrefix(s, "Z"), err
}

func childrenOf() func(int) []int { return byParent(parents()) }

// parents returns the parent of every process.
func parents() map[int]int {
	all := map[int]int{}
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return all
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		pid, err1 := strconv.Atoi(fields[0])
		parent, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil {
			all[pid] = parent
		}
	}
	return all
}
