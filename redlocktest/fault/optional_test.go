package fault

import (
	"testing"

	"github.com/redlock-go/redlock/driver"
)

type (
	watcher   struct{ driver.Watcher }
	inspector struct{ driver.Inspector }
	admin     struct{ driver.Admin }
)

// TestWrappersKeepTheOptionalInterfaces: what a Harness opens has the optional interfaces of the
// backend, in each combination, and no others.
func TestWrappersKeepTheOptionalInterfaces(t *testing.T) {
	type bare struct{ driver.Backend }
	has := func(b any) (all [3]bool) {
		_, all[0] = b.(driver.Watcher)
		_, all[1] = b.(driver.Inspector)
		_, all[2] = b.(driver.Admin)
		return all
	}
	w := &linkedBackend{}
	for _, b := range []driver.Backend{
		bare{},
		struct {
			bare
			watcher
		}{},
		struct {
			bare
			inspector
		}{},
		struct {
			bare
			admin
		}{},
		struct {
			bare
			watcher
			inspector
		}{},
		struct {
			bare
			watcher
			admin
		}{},
		struct {
			bare
			inspector
			admin
		}{},
		struct {
			bare
			watcher
			inspector
			admin
		}{},
	} {
		got := withOptional(w, b)
		if has(got) != has(b) {
			t.Errorf("%T has %v, and its wrapper %v", b, has(b), has(got))
		}
		if got.(wrapped).layer() != w {
			t.Errorf("the wrapper of %T is lost", b)
		}
	}
}
