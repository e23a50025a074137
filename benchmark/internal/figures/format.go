package figures

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

// A Unit is the unit of a figure, always the base unit: seconds, not milliseconds.
type Unit string

// The units.
const (
	Seconds   Unit = "s"
	PerSecond Unit = "1/s"
	Bytes     Unit = "B"
	Percent   Unit = "%"
	Count     Unit = ""
)

// Format returns a figure with three digits and a unit scaled for people.
func Format(v float64, u Unit) string {
	switch u {
	case Seconds, Bytes:
		scaled, prefix := humanize.ComputeSI(v)
		if u == Seconds && v >= 1 { // 90 s, not 0.09 ks
			scaled, prefix = v, ""
		}
		return Digits(scaled) + " " + prefix + string(u)
	case PerSecond:
		return Digits(v) + "/s"
	case Percent:
		return Digits(v) + " %"
	}
	return Digits(v)
}

// OrDash is Format, with a dash for a figure that is not positive.
func OrDash(v float64, u Unit) string {
	if v <= 0 {
		return "–"
	}
	return Format(v, u)
}

// Digits returns a number with three significant digits, without an exponent, with its
// thousands separated.
func Digits(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 999.5:
		return humanize.Comma(int64(math.Round(v)))
	case v == math.Trunc(v), a >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.0095:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// Ratio writes a ratio and its interval: "1.09 × (1.07 – 1.12)".
func (i Interval) Ratio() string {
	return Digits(i.Median) + " × (" + Digits(i.Low) + " – " + Digits(i.High) + ")"
}

// Format writes the median, and the interval if there are enough rounds.
func (i Interval) Format(u Unit) string {
	if i.Rounds < 2 {
		return Format(i.Median, u)
	}
	return Format(i.Median, u) + " (" + Format(i.Low, u) + " – " + Format(i.High, u) + ")"
}

// Table writes a table that is Markdown, and whose columns are aligned in a terminal too.
func Table(rows ...[]string) string {
	width := map[int]int{}
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell), 3)
		}
	}
	var b strings.Builder
	line := func(cells []string, fill string) {
		for i, cell := range cells {
			b.WriteString("| " + cell + strings.Repeat(fill, width[i]-utf8.RuneCountInString(cell)) + " ")
		}
		b.WriteString("|\n")
	}
	for i, row := range rows {
		if line(row, " "); i == 0 {
			line(make([]string, len(row)), "-")
		}
	}
	return b.String()
}

// Wrap breaks a paragraph into lines.
func Wrap(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > 98: // two more columns indent a list
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String() + "\n"
}

// List writes items as a list.
func List(items []string) string {
	var b strings.Builder
	for _, item := range items {
		b.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(Wrap(item)), "\n", "\n  ") + "\n")
	}
	return b.String()
}
