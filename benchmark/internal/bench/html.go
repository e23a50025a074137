package bench

import (
	"bytes"
	_ "embed"
	"html/template"
)

//go:embed report.html.tmpl
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"id":     id,
	"goals":  goalTable,
	"plus":   func(a, b float64) float64 { return a + b },
	"minus":  func(a, b float64) float64 { return a - b },
	"middle": func(a, b float64) float64 { return (a + b) / 2 },
}).Parse(pageText))

// sectionView is a section as the template shows it.
type sectionView struct {
	*Section
	Figures []figure
	Tables  []table
}

// html writes the report as one page without scripts.
func (r *Report) html() ([]byte, error) {
	data := struct {
		*Report
		Circumstances, HowToRead string
		Views                    []sectionView
	}{r, r.circumstances(), plain(howToRead), nil}
	for _, s := range r.Sections {
		data.Views = append(data.Views, sectionView{s, s.figures(), s.tables()})
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// plain takes Markdown's emphasis away.
func plain(s string) string {
	return string(bytes.ReplaceAll([]byte(s), []byte("*"), nil))
}
