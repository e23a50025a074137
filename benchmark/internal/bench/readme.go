package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// These lines of the performance page enclose what a run writes.
const (
	pageBegin = "<!-- written by go run -C benchmark . -readme ../.github/docs/performance.md -->\n"
	pageEnd   = "<!-- end -->\n"
)

// markdown writes the picture, the lead, the circumstances and the table for the performance page.
func (r *Report) markdown(picture string) string {
	o := r.overview()
	text := "![The time of an acquisition and of a handoff, for ours and other libraries](" + picture + ")\n\n" + figures.Wrap(o.lead) + "\n"
	if len(o.why) > 0 {
		text += "Measured in the same rounds, where ours is behind:\n\n" + figures.List(o.why) + "\n"
	}
	return text + figures.Wrap("The table has the times of one run of `go run -C benchmark .`: of a lock and its release (with 64 goroutines the time divided by the number of locks), or of a handoff. In each column less is better, and the quickest other library is bold. Ours has its ratio to that library in the same rounds, with the 99 % interval; – was not measured, or hardly ever handed a lock over. "+r.circumstances()) +
		"\n" + figures.Table(o.table...)
}

// WritePage replaces the part of the performance page that a run writes, and the picture beside
// it. It refuses figures of a part of a run, and of one beside other load.
func (r *Report) WritePage(path string) error {
	if !r.Whole || loaded(r.Foreign) {
		return fmt.Errorf("%s was not changed: this was no whole run, or other programs used more than a fifth of the processors", path)
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(old), pageBegin)
	_, after, ended := strings.Cut(rest, pageEnd)
	if !ok || !ended {
		return errors.New(path + " has no part between " + strings.TrimSpace(pageBegin) + " and " + strings.TrimSpace(pageEnd))
	}
	picture := strings.TrimSuffix(path, filepath.Ext(path)) + ".svg"
	if err := os.WriteFile(picture, []byte(r.Picture()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(before+pageBegin+r.markdown(filepath.Base(picture))+pageEnd+after), 0o644)
}
