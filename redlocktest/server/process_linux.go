package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// stat returns a process's state and its parent.
func stat(pid int) (state byte, parent int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The name in parentheses may hold anything, parentheses too.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0, 0, fmt.Errorf("/proc/%d/stat is odd", pid)
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return fields[0][0], parent, err
}

func isZombie(pid int) bool {
	state, _, err := stat(pid)
	return err == nil && (state == 'Z' || state == 'X')
}

func isStopped(pid int) (bool, error) {
	state, _, err := stat(pid)
	return state == 'T' || state == 'Z', err
}

// parents returns the parent of every process.
func parents() map[int]int {
	all := map[int]int{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return all
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if _, parent, err := stat(pid); err == nil {
			all[pid] = parent
		}
	}
	return all
}
