package redlocktest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sharedFiles have the code that all cases use. A case may, but need not, name the rules that
// this code asserts.
var sharedFiles = []string{"run.go", "attempt.go", "terms.go"}

// otherFiles have no code of any case. The code of known.go, scenes.go and urls.go is for drivers'
// own tests.
var otherFiles = []string{"suite.go", "report.go", "case.go", "client.go", "stress.go", "stress_fault.go", "stress_judge.go", "stress_work.go",
	"bench.go", "beside.go", "known.go", "scenes.go", "urls.go"}

// suiteCode is the part of the suite's code that shows which case can find which rule broken.
type suiteCode struct {
	rules map[string]rule            // by constant name
	funcs map[string][]*ast.FuncDecl // by function name
	file  map[*ast.FuncDecl]string
	param map[string]int                 // index of the parameter that is a rule, by function
	do    map[string]map[string]ast.Expr // the code of each case, by the names of its table and the case
}

func readSuite(t *testing.T) *suiteCode {
	t.Helper()
	c := &suiteCode{rules: map[string]rule{}, funcs: map[string][]*ast.FuncDecl{}, file: map[*ast.FuncDecl]string{}, param: map[string]int{}, do: map[string]map[string]ast.Expr{}}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := f.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || slices.Contains(otherFiles, name) {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				c.addFunc(d, name)
			case *ast.GenDecl:
				if name == "rule.go" && d.Tok == token.CONST {
					for i, s := range d.Specs {
						c.rules[s.(*ast.ValueSpec).Names[0].Name] = rule(i)
					}
				}
				if table, ok := d.Specs[0].(*ast.ValueSpec); ok && d.Tok == token.VAR && strings.HasSuffix(table.Names[0].Name, "Cases") {
					c.addCases(table)
				}
			}
		}
	}
	return c
}

func (c *suiteCode) addFunc(d *ast.FuncDecl, file string) {
	c.funcs[d.Name.Name] = append(c.funcs[d.Name.Name], d)
	c.file[d] = file
	i := 0
	for _, p := range d.Type.Params.List {
		if of, ok := p.Type.(*ast.Ident); ok && of.Name == "rule" {
			c.param[d.Name.Name] = i
		}
		i += max(1, len(p.Names))
	}
}

// reaches returns the rules that this code can find broken: own are those asserted outside of
// sharedFiles, all includes those.
func (c *suiteCode) reaches(code ast.Node) (own, all map[rule]bool) {
	own, all = map[rule]bool{}, map[rule]bool{}
	seen := map[*ast.FuncDecl]bool{}
	var visit func(n ast.Node, shared bool)
	visit = func(n ast.Node, shared bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				name := called(n)
				if i, ok := c.param[name]; ok && i < len(n.Args) {
					if id, ok := n.Args[i].(*ast.Ident); ok {
						if r, ok := c.rules[id.Name]; ok {
							all[r] = true
							own[r] = own[r] || !shared
						}
					}
				}
			case *ast.Ident: // includes methods, and functions that are only passed on
				for _, d := range c.funcs[n.Name] {
					if !seen[d] {
						seen[d] = true
						visit(d.Body, slices.Contains(sharedFiles, c.file[d]))
					}
				}
			}
			return true
		})
	}
	visit(code, false)
	for r := range own {
		if !own[r] {
			delete(own, r)
		}
	}
	return own, all
}

// called returns the name of the called function.
func called(n *ast.CallExpr) string {
	switch f := n.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// addCases adds a table of cases.
func (c *suiteCode) addCases(table *ast.ValueSpec) {
	all := map[string]ast.Expr{}
	for _, e := range table.Values[0].(*ast.CompositeLit).Elts {
		var name string
		for _, f := range e.(*ast.CompositeLit).Elts {
			switch kv := f.(*ast.KeyValueExpr); kv.Key.(*ast.Ident).Name {
			case "name":
				name, _ = strconv.Unquote(kv.Value.(*ast.BasicLit).Value)
			case "do":
				all[name] = kv.Value
			}
		}
	}
	c.do[table.Names[0].Name] = all
}

// TestEachCaseNamesTheRulesThatItTests: a case names only rules that it can find broken, and
// all rules that its own code asserts. Some case tests each rule.
func TestEachCaseNamesTheRulesThatItTests(t *testing.T) {
	code := readSuite(t)
	names := make([]string, len(texts))
	for name, r := range code.rules {
		names[r] = name
	}
	tested := map[rule]bool{}
	for _, g := range groups {
		do := code.do[g.name+"Cases"]
		for _, c := range g.cases {
			if do[c.name] == nil {
				t.Fatalf("%s/%s is not in the table %sCases", g.name, c.name, g.name)
			}
			own, all := code.reaches(do[c.name])
			delete(own, nothingShown)
			if len(c.rules) == 0 {
				var list []string
				for r := range own {
					list = append(list, names[r])
				}
				slices.Sort(list)
				t.Errorf("%s/%s names no rule; it asserts: %v", g.name, c.name, list)
			}
			for r := range own {
				if !slices.Contains(c.rules, r) {
					t.Errorf("%s/%s asserts the rule %s, and does not name it", g.name, c.name, names[r])
				}
			}
			for _, r := range c.rules {
				tested[r] = true
				if !all[r] {
					t.Errorf("%s/%s names the rule %s, which it cannot find broken", g.name, c.name, names[r])
				}
			}
		}
	}
	for r := range rule(len(texts)) {
		if !tested[r] && r != nothingShown {
			t.Errorf("no case tests the rule %s", names[r])
		}
	}
}

// TestCasesSayWhatTheyDo: the code of every case is embedded, so that its comment is found.
func TestCasesSayWhatTheyDo(t *testing.T) {
	suite, found, about := readSuite(t), comments(), map[string]string{}
	for _, c := range Cases() {
		about[c.Name] = c.About
	}
	for _, g := range groups {
		for _, c := range g.cases {
			do, named := suite.do[g.name+"Cases"][c.name].(*ast.Ident)
			if !named {
				continue
			}
			if text, ok := found[do.Name]; !ok || text != about[g.name+"/"+c.name] {
				t.Errorf("%s/%s: the comment on %s is %q (embedded: %v), and Cases says %q", g.name, c.name, do.Name, text, ok, about[g.name+"/"+c.name])
			}
		}
	}
	for name, want := range map[string]string{
		"basic/held": "checks that two clients exclude each other, as two processes do.", "link/reset-lease": "a lease does not live in a connection: a break loses nothing.",
	} {
		if about[name] != want {
			t.Errorf("%s: %q, want %q", name, about[name], want)
		}
	}
}
