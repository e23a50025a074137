package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/driver/printable"
)

// This file has the common parts of the output.

// place returns a text for where a client locks.
func place(c *dlock.Client) string {
	address := c.String()
	if dsn.HasPassword(address) { // the folder of a mistyped URL, say
		address = c.Backend().Info().Name
	}
	return "on " + printable.Text(address)
}

// writeTable writes rows, of which the first is the head, in columns, each line behind indent. A
// column without text below its head is left out.
func writeTable(out io.Writer, indent string, rows [][]string) {
	used := make([]bool, len(rows[0]))
	for _, row := range rows[1:] {
		for i, cell := range row {
			used[i] = used[i] || cell != ""
		}
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if used[i] {
				fmt.Fprint(w, cell, "\t")
			}
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // to memory
	for line := range strings.Lines(b.String()) {
		fmt.Fprintln(out, indent+strings.TrimRight(line, " \n"))
	}
}

// writeJSON writes v, and what may disturb a terminal as JSON's escapes.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		if r == '\n' || strconv.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&out, "\\u%04x", unit)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// ago formats a duration for people; zero is empty.
func ago(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return printable.Duration(max(d, time.Millisecond)).String()
}

// since formats an instant by this machine's clock and zone, and how long ago it was.
func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	layout := time.DateTime
	if t.Local().Format(time.DateOnly) == now.Local().Format(time.DateOnly) {
		layout = time.TimeOnly
	}
	return fmt.Sprintf("%s (%s ago)", t.Local().Format(layout), ago(max(now.Sub(t), time.Millisecond)))
}

// number10 formats a number; zero is empty.
func number10(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// holder formats the owner.
func holder(h *driver.Holder) string {
	if h.Owner == "" {
		return "(unknown)"
	}
	return printable.Text(h.Owner)
}
