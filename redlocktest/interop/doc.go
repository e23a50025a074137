// Package interop tests that locks of other libraries and ours exclude each other on one
// server, so that services can migrate one at a time. It is a module of its own, so that users
// of this library do not get the other libraries as dependencies.
package interop
