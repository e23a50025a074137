// Package peers holds the locks of other libraries as contestants of package bench, set
// up as their own documentation says.
package peers

import (
	"slices"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
)

// Contestants returns one contestant for each library and each setup of it.
func Contestants() []bench.Contestant {
	return slices.Concat(overRedis(), trackers(), overPostgres(), overEtcd(), overConsul())
}
