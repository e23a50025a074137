package fault

import (
	"fmt"

	"github.com/redlock-go/redlock/driver"
)

// wrapped is a wrapper of a backend; layer returns the wrapper itself, which other interfaces
// that are put around it would hide.
type wrapped interface {
	driver.Backend
	fmt.Stringer
	layer() any
}

// optional has the optional interfaces of a backend; nil: it lacks that one.
type optional struct {
	watcher      driver.Watcher
	inspector    driver.Inspector
	admin        driver.Admin
	sessionAdmin driver.SessionAdmin
	guardAdmin   driver.GuardAdmin
}

// optionalOf returns the optional interfaces that b has.
func optionalOf(b driver.Backend) (o optional) {
	o.watcher, _ = b.(driver.Watcher)
	o.inspector, _ = b.(driver.Inspector)
	o.admin, _ = b.(driver.Admin)
	o.sessionAdmin, _ = b.(driver.SessionAdmin)
	o.guardAdmin, _ = b.(driver.GuardAdmin)
	return o
}

// add returns w with exactly these optional interfaces. The cases are all subsets: a Go type
// cannot be made at run time.
func (o optional) add(w wrapped) driver.Backend {
	set := 0
	for i, has := range [...]bool{o.watcher != nil, o.inspector != nil, o.admin != nil, o.sessionAdmin != nil, o.guardAdmin != nil} {
		if has {
			set |= 1 << i
		}
	}
	switch set {
	case 1:
		return struct {
			wrapped
			driver.Watcher
		}{w, o.watcher}
	case 2:
		return struct {
			wrapped
			driver.Inspector
		}{w, o.inspector}
	case 3:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
		}{w, o.watcher, o.inspector}
	case 4:
		return struct {
			wrapped
			driver.Admin
		}{w, o.admin}
	case 5:
		return struct {
			wrapped
			driver.Watcher
			driver.Admin
		}{w, o.watcher, o.admin}
	case 6:
		return struct {
			wrapped
			driver.Inspector
			driver.Admin
		}{w, o.inspector, o.admin}
	case 7:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			driver.Admin
		}{w, o.watcher, o.inspector, o.admin}
	case 8:
		return struct {
			wrapped
			driver.SessionAdmin
		}{w, o.sessionAdmin}
	case 9:
		return struct {
			wrapped
			driver.Watcher
			driver.SessionAdmin
		}{w, o.watcher, o.sessionAdmin}
	case 10:
		return struct {
			wrapped
			driver.Inspector
			driver.SessionAdmin
		}{w, o.inspector, o.sessionAdmin}
	case 11:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			driver.SessionAdmin
		}{w, o.watcher, o.inspector, o.sessionAdmin}
	case 12:
		return struct {
			wrapped
			driver.Admin
			driver.SessionAdmin
		}{w, o.admin, o.sessionAdmin}
	case 13:
		return struct {
			wrapped
			driver.Watcher
			driver.Admin
			driver.SessionAdmin
		}{w, o.watcher, o.admin, o.sessionAdmin}
	case 14:
		return struct {
			wrapped
			driver.Inspector
			driver.Admin
			driver.SessionAdmin
		}{w, o.inspector, o.admin, o.sessionAdmin}
	case 15:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			driver.Admin
			driver.SessionAdmin
		}{w, o.watcher, o.inspector, o.admin, o.sessionAdmin}
	case 16:
		return struct {
			wrapped
			driver.GuardAdmin
		}{w, o.guardAdmin}
	case 17:
		return struct {
			wrapped
			driver.Watcher
			driver.GuardAdmin
		}{w, o.watcher, o.guardAdmin}
	case 18:
		return struct {
			wrapped
			driver.Inspector
			driver.GuardAdmin
		}{w, o.inspector, o.guardAdmin}
	case 19:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			driver.GuardAdmin
		}{w, o.watcher, o.inspector, o.guardAdmin}
	case 20:
		return struct {
			wrapped
			driver.Admin
			driver.GuardAdmin
		}{w, o.admin, o.guardAdmin}
	case 21:
		return struct {
			wrapped
			driver.Watcher
			driver.Admin
			driver.GuardAdmin
		}{w, o.watcher, o.admin, o.guardAdmin}
	case 22:
		return struct {
			wrapped
			driver.Inspector
			driver.Admin
			driver.GuardAdmin
		}{w, o.inspector, o.admin, o.guardAdmin}
	case 23:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			driver.Admin
			driver.GuardAdmin
		}{w, o.watcher, o.inspector, o.admin, o.guardAdmin}
	case 24:
		return struct {
			wrapped
			driver.SessionAdmin
			driver.GuardAdmin
		}{w, o.sessionAdmin, o.guardAdmin}
	case 25:
		return struct {
			wrapped
			driver.Watcher
			driver.SessionAdmin
			driver.GuardAdmin
		}{w, o.watcher, o.sessionAdmin, o.guardAdmin}
	case 26:
		return struct {
			wrapped
			driver.Inspector
			driver.SessionAdmin
			driver.GuardAdmin
		}{w, o.inspector, o.sessionAdmin, o.guardAdmin}
	case 27:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			driver.SessionAdmin
			driver.GuardAdmin
		}{w, o.watcher, o.inspector, o.sessionAdmin, o.guardAdmin}
	case 28:
		return struct {
			wrapped
			driver.Admin
			driver.SessionAdmin
			driver.GuardAdmin
		}{w, o.admin, o.sessionAdmin, o.guardAdmin}
	case 29:
		return struct {
			wrapped
			driver.Watcher
			driver.Admin
			driver.SessionAdmin
			driver.GuardAdmin
		}{w, o.watcher, o.admin, o.sessionAdmin, o.guardAdmin}
	case 30:
		return struct {
			wrapped
			driver.Inspector
			driver.Admin
			driver.SessionAdmin
			driver.GuardAdmin
		}{w, o.inspector, o.admin, o.sessionAdmin, o.guardAdmin}
	case 31:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			driver.Admin
			driver.SessionAdmin
			driver.GuardAdmin
		}{w, o.watcher, o.inspector, o.admin, o.sessionAdmin, o.guardAdmin}
	}
	return w
}
