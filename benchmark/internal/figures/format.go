package figures

import (
	"math"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
)

// A Unit is the unit of a figure, always the base unit: seconds, not milliseconds.
type Unit string

// The units.
const (
	Seconds   Unit = "s"
	PerSecond Unit = "1/s"
	Bytes     Unit = "B"
	Times     Unit = "×"
	Count     Unit = ""
	Percent   Unit = "%"
)

// Format returns a figure with three digits and a unit scaled for people.
func Format(v float64, u Unit) string {
	switch u {
	case Seconds, Bytes:
		if v == 0 {
			return "0 " + string(u)
		}
		scaled, prefix := humanize.ComputeSI(v)
		if u == Seconds && scaled >= 1000 || u == Seconds && prefix != "" && v >= 1 {
			scaled, prefix = v, ""
		}
		return Digits(scaled) + " " + prefix + string(u)
	case PerSecond:
		return Digits(v) + "/s"
	case Times, Percent:
		return Digits(v) + " " + string(u)
	}
	return Digits(v)
}

// Duration formats a duration like Format.
func Duration(d time.Duration) string { return Format(d.Seconds(), Seconds) }

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

// String returns the median and the interval: "1.09 × (1.07 – 1.12)".
func (i Interval) String() string {
	return Digits(i.Median) + " × (" + Digits(i.Low) + " – " + Digits(i.High) + ")"
}
