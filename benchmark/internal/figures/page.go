package figures

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"html/template"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A Page shows a report to people: one file without scripts, for light and dark screens, wide and
// narrow ones. Text between two stars on each side is bold.
type Page struct {
	Title, Lead string
	Nav         bool // links to the headings
	Blocks      []Block
}

// A Block is a part of a page. What is empty is left out.
type Block struct {
	Heading, Text string
	Quiet         bool // the text is small
	Plots         []Figure
	Fold          string // the list and the tables are folded under this label
	List          []string
	Tables        []Table
}

// A Figure is a plot with its caption.
type Figure struct {
	Title, Better string
	SVG           template.HTML
}

// A Table has texts in its cells. Class is the style of a row.
type Table struct {
	Title  string
	Header []string
	Rows   []TableRow
	Notes  []string
}

// A TableRow is one row of a table.
type TableRow struct {
	Class string
	Cells []string
}

//go:embed page.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"style": style, "id": id, "rich": rich}).Parse(pageText))

// id makes an HTML anchor from a heading.
func id(heading string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(heading))
}

var bold = regexp.MustCompile(`\*\*(.+?)\*\*`)

// rich makes what is between stars bold, as in Markdown.
func rich(text string) template.HTML {
	return template.HTML(bold.ReplaceAllString(template.HTMLEscapeString(text), "<b>$1</b>"))
}

// Write creates the folder, and writes the report to report.json and its page to report.html.
func (p *Page) Write(folder string, report any) error {
	var html, js bytes.Buffer
	if err := pageTemplate.Execute(&html, p); err != nil {
		return err
	}
	if err := json.NewEncoder(&js).Encode(report); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "report.json"), js.Bytes(), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "report.html"), html.Bytes(), 0o644)
}
