// Package peers holds the locks of other libraries as contestants of package bench, set
// up as their own documentation says.
//
// The locks of etcd take part if the program etcd is in PATH (Debian: etcd-server).
package peers

import (
	"slices"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
)

// Contestants returns one contestant for each library and each way to set it up.
func Contestants() []bench.Contestant {
	return slices.Concat(overRedis(), trackers(), overPostgres(), overEtcd())
}
