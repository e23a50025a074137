package fault

import (
	"fmt"

	"github.com/redlock-go/redlock/driver"
)

// wrapped is a backend and its links; layer returns it, which interfaces put around it would hide.
type wrapped interface {
	driver.Backend
	fmt.Stringer
	layer() *linkedBackend
}

// withOptional returns w with exactly the optional interfaces that b has. The cases are all subsets:
// a Go type cannot be made at run time.
func withOptional(w wrapped, b driver.Backend) driver.Backend {
	watcher, watches := b.(driver.Watcher)
	inspector, inspects := b.(driver.Inspector)
	admin, breaks := b.(driver.Admin)
	switch [3]bool{watches, inspects, breaks} {
	case [3]bool{true, false, false}:
		return struct {
			wrapped
			driver.Watcher
		}{w, watcher}
	case [3]bool{false, true, false}:
		return struct {
			wrapped
			driver.Inspector
		}{w, inspector}
	case [3]bool{true, true, false}:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
		}{w, watcher, inspector}
	case [3]bool{false, false, true}:
		return struct {
			wrapped
			driver.Admin
		}{w, admin}
	case [3]bool{true, false, true}:
		return struct {
			wrapped
			driver.Watcher
			driver.Admin
		}{w, watcher, admin}
	case [3]bool{false, true, true}:
		return struct {
			wrapped
			driver.Inspector
			driver.Admin
		}{w, inspector, admin}
	case [3]bool{true, true, true}:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			driver.Admin
		}{w, watcher, inspector, admin}
	}
	return w
}
