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

// childrenOf returns a function that returns a process's children. Most kernels list them for each
// thread, surely for a process that is stopped; without that list (CONFIG_PROC_CHILDREN) every
// process's parent is read, which takes much longer on a machine with many processes.
func childrenOf() func(int) []int {
	if _, err := os.Stat("/proc/thread-self/children"); err != nil {
		return byParent(parents())
	}
	return func(pid int) (children []int) {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is sound
		for _, list := range lists {
			text, _ := os.ReadFile(list) // the thread may have ended
			for _, field := range bytes.Fields(text) {
				if child, err := strconv.Atoi(string(field)); err == nil {
					children = append(children, child)
				}
			}
		}
		return children
	}
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
