// Package figures judges measurements.
//
//	Series   ──> one figure of one contestant: its samples, and its median in each round
//	Interval ──> the median over rounds, and where it may be
//	Verdict  ──> ahead, behind, cannot tell
//
// Two contestants are compared by the ratio of their figures in each round, because a machine
// that is slow for a while is slow for both. The confidence interval of these ratios decides;
// if it does not, the comparison stays undecided.
package figures

import (
	"maps"
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

// A Series is one figure over the rounds of a measurement. The zero value is empty.
type Series struct {
	Rounds map[int]float64 // the median of each round

	all []float64
}

// Add adds what was measured in a round. It ignores a round without samples.
func (s *Series) Add(round int, samples ...float64) {
	if len(samples) == 0 {
		return
	}
	if s.Rounds == nil {
		s.Rounds = map[int]float64{}
	}
	s.Rounds[round] = stats.Sample{Xs: samples}.Quantile(0.5)
	s.all = append(s.all, samples...)
}

// Count returns the number of samples.
func (s *Series) Count() int { return len(s.all) }

// Interval returns the interval of the rounds' medians.
func (s *Series) Interval() Interval { return IntervalOf(slices.Collect(maps.Values(s.Rounds))) }

// Quantile returns the quantile q of all samples, or zero if there are so few that it would only
// be the greatest.
func (s *Series) Quantile(q float64) float64 {
	if float64(len(s.all))*(1-q) < 0.9999 {
		return 0
	}
	slices.Sort(s.all)
	return stats.Sample{Xs: s.all, Sorted: true}.Quantile(q)
}

// An Interval is the median of one figure over the rounds, and the range in which the true
// median is, with the given Confidence. It assumes nothing about the distribution of the
// figures (it uses order statistics).
type Interval struct {
	Median, Low, High float64
	Rounds            int
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
func Ratios(a, b *Series) Interval {
	var ratios []float64
	for round, v := range a.Rounds {
		if other, ok := b.Rounds[round]; ok && other > 0 {
			ratios = append(ratios, v/other)
		}
	}
	return IntervalOf(ratios)
}

// A Verdict is the result of a comparison.
type Verdict string

// The verdicts.
const (
	Ahead      Verdict = "ahead"
	Behind     Verdict = "behind"
	CannotTell Verdict = "cannot tell"
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
