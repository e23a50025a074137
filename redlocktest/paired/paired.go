// Package paired compares two ways to do the same work. Both do it in every round, and the
// ratio of each round counts, so that other load on the machine slows both down.
package paired

import (
	"fmt"
	"math"
	"slices"
)

// A Ratio is the cost of one way divided by the cost of the other: the median of several
// rounds, with its 95 % confidence interval by the sign test (Conover, Practical Nonparametric
// Statistics, 3.2).
type Ratio struct{ Median, Low, High float64 }

// RatioOf returns the median of the rounds' ratios, of which there must be at least one, and
// its interval.
func RatioOf(rounds []float64) Ratio {
	all := slices.Sorted(slices.Values(rounds))
	n := len(all)
	// The normal approximation of the binomial distribution, rounded outwards.
	k := max(0, int(math.Floor(float64(n)/2-0.98*math.Sqrt(float64(n)))))
	return Ratio{Median: (all[n/2] + all[(n-1)/2]) / 2, Low: all[k], High: all[n-1-k]}
}

// String returns "1.030 (1.010 to 1.050)".
func (r Ratio) String() string { return fmt.Sprintf("%.3f (%.3f to %.3f)", r.Median, r.Low, r.High) }
