package cli

// status is the letter of a process's state; zero: there is none.
func status(pid int) byte {
	_, state, _ := stat(pid)
	return state
}
