package redisnode

// Texts returns the texts of acquire and release as they are bound to the process
// with this run_id: for benchmarks, which call them with nothing around them.
func Texts(run string) (acquire, release string) {
	bound := bind(run)
	return bound[opAcquire].text, bound[opRelease].text
}
