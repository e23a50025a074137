// Package wallclock gives a process a wall clock of its own. The kernel has one for all processes
// of a machine, and a Go program reads it without a library that could be replaced: so Set replaces
// what the Go runtime calls. It works for all code of the program, other libraries included.
package wallclock
