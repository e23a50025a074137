package fault

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

// everything is a backend with all optional interfaces.
type everything struct {
	driver.Backend
	driver.Watcher
	driver.Inspector
	driver.Admin
	guardAdmin
}

func (everything) Info() driver.Info { return driver.Info{Name: "everything"} }
func (everything) String() string    { return "everything" }
func (everything) layer() any        { return nil }

// interfacesOf lists the optional interfaces of a backend by name.
func interfacesOf(x any) (names []string) {
	for name, has := range map[string]func() bool{
		"Watcher":    func() bool { _, ok := x.(driver.Watcher); return ok },
		"Inspector":  func() bool { _, ok := x.(driver.Inspector); return ok },
		"Admin":      func() bool { _, ok := x.(driver.Admin); return ok },
		"GuardAdmin": func() bool { _, ok := x.(quorum.Admin); return ok },
	} {
		if has() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestWrappersKeepTheOptionalInterfaces: what Wrap and a Harness return has the optional
// interfaces of the backend, in each combination, and no others.
func TestWrappersKeepTheOptionalInterfaces(t *testing.T) {
	all := everything{}
	for set := range 16 {
		var some optional
		want := []string(nil)
		for i, add := range []func() string{
			func() string { some.watcher = all; return "Watcher" },
			func() string { some.inspector = all; return "Inspector" },
			func() string { some.admin = all; return "Admin" },
			func() string { some.guardAdmin = all; return "GuardAdmin" },
		} {
			if set&(1<<i) != 0 {
				want = append(want, add())
			}
		}
		slices.Sort(want)
		b := some.add(struct{ wrapped }{all})
		h := HarnessOf(nil, func([]string) (driver.Backend, error) { return b, nil })
		linked, err := h.Open()
		must(t, err)
		for in, got := range map[string]driver.Backend{"the backend": b, "Wrap": Wrap(b, &Script{}), "a Harness": linked} {
			if has := interfacesOf(got); !slices.Equal(has, want) {
				t.Errorf("%s has %q, want %q", in, has, want)
			}
		}
		if Unwrap(linked) != b {
			t.Errorf("the backend with %q is not unwrapped", want)
		}
	}
}

// TestAllOptionalInterfacesAreKnown: an interface that package driver gets must be added to
// optional.
func TestAllOptionalInterfacesAreKnown(t *testing.T) {
	packages, err := parser.ParseDir(token.NewFileSet(), "../../driver", nil, parser.SkipObjectResolution) //nolint:staticcheck // its files have no build tags
	must(t, err)
	var found []string
	ast.Inspect(packages["driver"], func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if _, is := spec.Type.(*ast.InterfaceType); is && ast.IsExported(spec.Name.Name) {
				found = append(found, spec.Name.Name)
			}
		}
		return true
	})
	required := []string{"Backend", "Driver", "Lease"}
	want := slices.DeleteFunc(interfacesOf(everything{}), func(name string) bool { return name == "GuardAdmin" }) // of package quorum
	want = append(want, required...)
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("package driver has the interfaces %q, and the wrappers know %q", found, want)
	}
}
