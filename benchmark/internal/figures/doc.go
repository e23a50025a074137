// Package figures judges measurements and draws them.
//
//	Latencies ──> a histogram of one operation
//	Interval  ──> the median over rounds, and where it may be
//	Verdict   ──> ahead, behind, cannot tell; met, missed, undecided
//	Lines     ──> SVG, for light and for dark pages; so do Dots
//	Page      ──> report.html and report.json
//
// Two contestants are compared by the ratio of their figures in each round, because a machine
// that is slow for a while is slow for both. The confidence interval of these ratios decides;
// if it does not, the comparison stays undecided.
package figures
