// Package setup marks the calls that may make what a database lacks.
package setup

import "context"

type key struct{}

// Context returns a context of such a call.
func Context(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Allowed reports whether ctx is a context of such a call.
func Allowed(ctx context.Context) bool { return ctx.Value(key{}) != nil }
