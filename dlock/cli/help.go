package cli

import (
	_ "embed" // the manual is the package's documentation
	"fmt"
	"runtime/debug"
	"strings"
)

//go:embed doc.go
var manual string

// section returns the part of the manual under a heading; empty: there is none.
func section(title string) string {
	_, rest, found := strings.Cut(manual, "\n// # "+title+"\n//\n")
	if !found {
		return ""
	}
	text, _, _ := strings.Cut(rest, "\n// # ")
	text, _, _ = strings.Cut(text, "\npackage ")
	return strings.NewReplacer("\n// ", "\n", "\n//\t", "\n    ", "\n//", "\n").Replace("\n" + text)
}

// lookup returns the line of a section that begins with a word, up to the column of explanations,
// and the explanation, which may stand on the next line.
func lookup(title, word string) (form, explanation string) {
	for line := range strings.Lines(section(title)) {
		line = strings.TrimSpace(line)
		if form != "" && line != "" {
			return form, line
		}
		form = "" // that of an example
		if strings.HasPrefix(line+" ", word+" ") {
			if form, explanation, _ = strings.Cut(line, "  "); explanation != "" {
				return form, strings.TrimSpace(explanation)
			}
		}
	}
	return "", ""
}

// summary returns the form of a command, and what it does.
func summary(command string) (form, does string) { return lookup("dlock", "dlock "+command) }

// help prints a section of the manual.
func (c *console) help(title string) error {
	text := section(title)
	if text == "" {
		return failf(exitUsage, "there is no such command or topic: dlock help lists them")
	}
	form := "dlock COMMAND [ARG...]"
	if command, ok := strings.CutPrefix(title, "dlock "); ok {
		form, _ = summary(command)
	}
	if strings.HasPrefix(title, "dlock") {
		text = "Usage: " + form + "\n" + text
	}
	fmt.Fprint(c.out, strings.TrimPrefix(text, "\n"))
	return nil
}

func newHelp(c *call) func() error {
	return func() error {
		if err := c.want(0, 1); err != nil {
			return err
		}
		if len(c.args) == 0 {
			return c.help("dlock")
		}
		if c.args[0] == "man" {
			c.manPage()
			return nil
		}
		if _, command := commands()[c.args[0]]; command {
			return c.help("dlock " + c.args[0])
		}
		return c.help(c.args[0])
	}
}

// manPage prints the manual as a page for man(1): its paragraphs are filled, and what is indented
// stays as it is.
func (c *console) manPage() {
	roff := strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, "\n.", "\n\\&.")
	fmt.Fprint(c.out, ".TH DLOCK 1\n.SH NAME\ndlock \\- run a command under a distributed lock\n")
	for _, part := range strings.Split(manual, "\n// # ")[1:] {
		title, _, _ := strings.Cut(part, "\n")
		fmt.Fprintln(c.out, ".SH", roff.Replace(strings.ToUpper(title)))
		for _, paragraph := range strings.Split(strings.Trim(section(title), "\n"), "\n\n") {
			form := ".PP\n%s\n"
			if strings.HasPrefix(paragraph, " ") {
				form = ".PP\n.nf\n%s\n.fi\n"
			}
			fmt.Fprintf(c.out, form, roff.Replace(paragraph))
		}
	}
}

func newVersion(c *call) func() error {
	return func() error {
		if err := c.want(0, 0); err != nil {
			return err
		}
		fmt.Fprintln(c.out, "dlock", version())
		return nil
	}
}

// version returns the versions of this module and of Go.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown version)"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			return m.Version + " " + info.GoVersion
		}
	}
	return "(unknown version) " + info.GoVersion
}
