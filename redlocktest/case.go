package redlocktest

import (
	"embed"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

// A Case is a case of the suite.
type Case struct {
	Name  string // "expiry/free"
	About string // the first sentence of the comment on its code, without the subject; often empty
	// Checks are the rules that the case tests, and those that the suite checks around every
	// case if it can, in the form of Failure.Rule.
	Checks []string
	_      struct{}
}

// code has the code of the cases, whose comments say what they do.
//
//go:embed basic.go cancel.go closing.go exclusion.go expiry.go fence.go history.go keyhash.go leak.go link.go node.go
//go:embed open.go operator.go outage.go process.go request.go shared.go verdict.go wait.go watch.go
var code embed.FS

// Cases returns all cases, in the order in which they run.
func Cases() []Case {
	comments := comments()
	var all []Case
	for _, g := range groups {
		for _, c := range g.cases {
			all = append(all, Case{Name: g.name + "/" + c.name, About: comments[funcName(c.do)], Checks: inWords(slices.Concat(everyCase, c.rules)...)})
		}
	}
	return all
}

// funcName returns the name of a function of this package.
func funcName(f func(*run)) string {
	name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
	return name[strings.LastIndexByte(name, '.')+1:]
}

// comments returns the first sentences of the comments on functions, without the functions' names.
func comments() map[string]string {
	all := map[string]string{}
	files, err := code.ReadDir(".")
	if err != nil {
		return all
	}
	for _, f := range files {
		text, err := code.ReadFile(f.Name())
		if err != nil {
			return all
		}
		tree, err := parser.ParseFile(token.NewFileSet(), f.Name(), text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return all // this package would not have been built
		}
		for _, d := range tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				said := strings.TrimPrefix(new(doc.Package).Synopsis(f.Doc.Text()), f.Name.Name)
				all[f.Name.Name] = strings.TrimLeft(said, ": ")
			}
		}
	}
	return all
}
