package valkeygo

import "github.com/redlock-go/redlock/drivers/internal/redisnode"

// ScriptsOf returns the texts of acquire and release as they are on the server with
// this run_id.
func ScriptsOf(run string) (acquire, release string) { return redisnode.Texts(run) }
