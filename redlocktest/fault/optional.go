package fault

import (
	"fmt"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
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
	watcher    driver.Watcher
	inspector  driver.Inspector
	admin      driver.Admin
	guardAdmin guardAdmin
}

// guardAdmin has a name of its own: a struct cannot embed two types named Admin.
type guardAdmin interface{ quorum.Admin }

// optionalOf returns the optional interfaces that b has.
func optionalOf(b driver.Backend) (o optional) {
	o.watcher, _ = b.(driver.Watcher)
	o.inspector, _ = b.(driver.Inspector)
	o.admin, _ = b.(driver.Admin)
	o.guardAdmin, _ = b.(quorum.Admin)
	return o
}

// add returns w with exactly these optional interfaces. The cases are all subsets: a Go type
// cannot be made at run time.
func (o optional) add(w wrapped) driver.Backend {
	set := 0
	for i, has := range [...]bool{o.watcher != nil, o.inspector != nil, o.admin != nil, o.guardAdmin != nil} {
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
			guardAdmin
		}{w, o.guardAdmin}
	case 9:
		return struct {
			wrapped
			driver.Watcher
			guardAdmin
		}{w, o.watcher, o.guardAdmin}
	case 10:
		return struct {
			wrapped
			driver.Inspector
			guardAdmin
		}{w, o.inspector, o.guardAdmin}
	case 11:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			guardAdmin
		}{w, o.watcher, o.inspector, o.guardAdmin}
	case 12:
		return struct {
			wrapped
			driver.Admin
			guardAdmin
		}{w, o.admin, o.guardAdmin}
	case 13:
		return struct {
			wrapped
			driver.Watcher
			driver.Admin
			guardAdmin
		}{w, o.watcher, o.admin, o.guardAdmin}
	case 14:
		return struct {
			wrapped
			driver.Inspector
			driver.Admin
			guardAdmin
		}{w, o.inspector, o.admin, o.guardAdmin}
	case 15:
		return struct {
			wrapped
			driver.Watcher
			driver.Inspector
			driver.Admin
			guardAdmin
		}{w, o.watcher, o.inspector, o.admin, o.guardAdmin}
	}
	return w
}
