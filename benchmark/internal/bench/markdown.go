package bench

import (
	"bytes"
	"fmt"
	"strings"
)

// markdown writes the report for a repository or a terminal.
func (r *Report) markdown() []byte {
	var b bytes.Buffer
	p := func(text string, args ...any) { fmt.Fprintf(&b, text, args...) }
	p("# %s\n\n%s\n\n", r.Title, r.Summary[0])
	for _, s := range r.Summary[1:] {
		p("- %s\n", s)
	}
	p("\n%s\n\n%s\n\n", r.circumstances(), howToRead)
	if len(r.Goals) > 0 {
		p("## Goals\n\n")
		markdownTable(&b, goalTable(r.Goals))
	}
	for _, s := range r.Sections {
		p("## %s\n\n%s\n\n", s.Title, s.Text)
		for _, t := range s.tables() {
			p("### %s\n\n", t.Case)
			markdownTable(&b, t)
		}
	}
	p("## Contestants\n\n")
	for _, c := range r.Setups {
		p("- **%s** (%s): %s.\n", c.Name, c.Kind, c.How)
	}
	if len(r.Notes) > 0 {
		p("\n## Left out\n\n")
		for _, n := range r.Notes {
			p("- %s\n", n)
		}
	}
	return b.Bytes()
}

// howToRead stands before the figures.
const howToRead = "Every figure is the median of the rounds, with the span of the middle half of them in brackets; p90 and beyond are of all rounds together. " +
	"Contestants took turns in every round. *Ours* is what users get; a *part* is some of it, alone; a *limit* does less than a lock has to, as fast as it can be done; a *peer* is another library. " +
	"*To bare* and *to scripts* divide a contestant's key figure by that of these limits over the same client library."

// circumstances says where and when it was measured.
func (r *Report) circumstances() string {
	m := r.Machine
	machine := fmt.Sprintf("%s/%s", m.OS, m.Arch)
	if m.CPU != "" {
		machine += ", " + m.CPU
	}
	text := fmt.Sprintf("Measured on %s in %s, with %s on %s (%s).",
		r.Began.Format("2 January 2006 at 15:04"), shortly(r.Took), m.Go, machine, plural(m.CPUs, "processor"))
	if len(m.Servers) > 0 {
		text += " Servers, on the same machine: " + strings.Join(m.Servers, ", ") + "."
	}
	if r.Quick {
		text += " This was a quick run: take its figures for a first look."
	}
	return text
}

func goalTable(goals []Goal) table {
	t := table{Header: []string{"goal", "at most", "measured", "met"}}
	for _, g := range goals {
		met := "yes"
		if !g.Met {
			met = "no"
		}
		t.Rows = append(t.Rows, tableRow{Cells: []string{g.What, digits(g.Most), digits(g.Measured), met}})
	}
	return t
}

func markdownTable(b *bytes.Buffer, t table) {
	row := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(b, "| %s ", strings.ReplaceAll(c, "|", "\\|"))
		}
		b.WriteString("|\n")
	}
	row(t.Header)
	row(append([]string{"---"}, repeat("---:", len(t.Header)-1)...))
	for _, r := range t.Rows {
		row(r.Cells)
	}
	b.WriteString("\n")
	for _, n := range t.Notes {
		fmt.Fprintf(b, "*%s*\n\n", n)
	}
}

func repeat(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}
