package redisnode

import (
	"errors"
	"math"
)

// text and number read one element of a reply.
func text(reply []any, i int) (string, bool) {
	if i >= len(reply) {
		return "", false
	}
	s, ok := reply[i].(string)
	return s, ok
}

func number(reply []any, i int) (int64, bool) {
	if i >= len(reply) {
		return 0, false
	}
	n, ok := reply[i].(int64)
	return n, ok
}

// garbled is the code of a reply that no script gives, and errGarbled its error. It is not a
// verdict.
const garbled = math.MinInt64

var errGarbled = errors.New("the server answers in an unknown way")

// configValue returns the value of a reply to CONFIG GET.
func configValue(reply any) (string, bool) {
	pair, ok := reply.([]any)
	if !ok || len(pair) != 2 {
		return "", false
	}
	value, ok := pair[1].(string)
	return value, ok
}
