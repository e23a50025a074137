package redlock

import (
	"errors"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	_ "github.com/redlock-go/redlock/drivers/goredis"
)

// A parameter of the whole quorum in the URL of one node, usually the last, would be ignored or
// make the nodes differ. So it is refused.
func TestWhatIsOfAllNodesIsNotOfOne(t *testing.T) {
	const nodes = "redlock:redis://u:s3cret@a,redis://b,redis://c"
	for _, option := range []string{"restart_guard=off", "restart_guard=1m", "prefix=app", "ttl=5s", "node_timeout=70ms", "bootstrap=true"} {
		name, _, _ := strings.Cut(option, "=")
		for _, at := range []string{"?", "?pool_size=3&"} {
			b, err := dlock.OpenURL(nodes + at + option)
			if err == nil {
				_ = b.Close()
			}
			if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s%s: %v", at, option, err)
			} else if name != "bootstrap" && !strings.Contains(err.Error(), name) {
				t.Errorf("%s%s is not named: %v", at, option, err)
			}
		}
		b, err := dlock.OpenURL(nodes + "," + option)
		if err != nil {
			t.Errorf(",%s: %v", option, err)
			continue
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
