package driver

import "github.com/redlock-go/redlock/driver/printable"

// Printable is printable.Text.
func Printable(s string) string { return printable.Text(s) }

// CommandLine is printable.CommandLine.
func CommandLine(args ...string) string { return printable.CommandLine(args...) }
