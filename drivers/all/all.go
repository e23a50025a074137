// Package all registers every driver of this module, for programs that take the
// backend from their configuration:
//
//	import _ "github.com/redlock-go/redlock/drivers/all"
//
// A program that knows its backend imports that driver alone, and does without the
// client libraries of the others.
package all

import (
	_ "github.com/redlock-go/redlock/dlock/both"
	_ "github.com/redlock-go/redlock/drivers/file"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	_ "github.com/redlock-go/redlock/drivers/memory"
	_ "github.com/redlock-go/redlock/drivers/postgres"
	_ "github.com/redlock-go/redlock/drivers/redlock"
	_ "github.com/redlock-go/redlock/drivers/valkeygo"
)
