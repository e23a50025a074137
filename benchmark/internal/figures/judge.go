package figures

import (
	"math"
	"slices"

	"github.com/aclements/go-moremath/stats"
)

const (
	// Confidence is the confidence of an Interval. It is high because a report has hundreds of
	// comparisons, and none should be wrong by chance alone.
	Confidence = 0.99
	// Margin is a difference that two runs of one program on one machine can have by chance. A
	// ratio that is nearer to one is neither ahead nor behind.
	Margin = 0.05
	// LeastRounds is the least number of rounds for an interval of this confidence.
	LeastRounds = 8
)

// An Interval is the median of one figure over the rounds, and the range in which the true
// median is, with the given Confidence. It assumes nothing about the distribution of the
// figures (it uses order statistics).
type Interval struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Rounds int     `json:"rounds"`
}

// Decided reports whether there are enough rounds for the interval to say anything. Otherwise
// Low and High are the extremes of the rounds.
func (i Interval) Decided() bool { return i.Rounds >= LeastRounds }

// IntervalOf returns the interval of the rounds' figures, or the zero Interval if there are
// none. It ignores NaN.
func IntervalOf(rounds []float64) Interval {
	v := slices.DeleteFunc(slices.Clone(rounds), func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	if len(v) == 0 {
		return Interval{}
	}
	slices.Sort(v)
	median, low, high := stats.QuantileCI(len(v), 0.5, Confidence).SampleCI(stats.Sample{Xs: v, Sorted: true})
	return Interval{median, max(low, v[0]), min(high, v[len(v)-1]), len(v)}
}

// Ratios returns the interval of the ratios a/b over the rounds that both have.
func Ratios(a, b map[int]float64) Interval {
	var ratios []float64
	for round, v := range a {
		if other, ok := b[round]; ok && other > 0 {
			ratios = append(ratios, v/other)
		}
	}
	return IntervalOf(ratios)
}

// A Verdict is the result of a comparison, or says whether a goal is met.
type Verdict string

// The verdicts.
const (
	Ahead      Verdict = "ahead"
	Behind     Verdict = "behind"
	CannotTell Verdict = "cannot tell"
	Met        Verdict = "met"
	Missed     Verdict = "missed"
	Undecided  Verdict = "undecided"
)

// Compare judges the ratio of ours to another's figure, where less is better.
func Compare(ratio Interval) Verdict {
	switch {
	case !ratio.Decided():
		return CannotTell
	case ratio.High < 1/(1+Margin):
		return Ahead
	case ratio.Low > 1+Margin:
		return Behind
	}
	return CannotTell
}

// Judge says whether a figure meets a goal, which is an upper bound.
func Judge(figure Interval, most float64) Verdict {
	switch {
	case !figure.Decided():
		return Undecided
	case figure.High <= most:
		return Met
	case figure.Low > most:
		return Missed
	}
	return Undecided
}
