package redisnode

import (
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/redisurl"
)

const (
	minTTL = 10 * time.Millisecond
	maxTTL = 30 * 24 * time.Hour

	// queueLife is how long a lock's queue stays on the server if no waiter asks again, in ms:
	// longer than waiters pause between two requests.
	queueLife = "150000"
)

// Config is the configuration of a Node.
type Config struct {
	Client Client
	Name   string // "redis" or "valkey", after the client library
	Addr   string // for String; without any secret
	Prefix string

	CallTimeout  time.Duration // zero: redisurl.DefaultCallTimeout
	Guard        time.Duration // the restart guard of a lone instance; zero: off
	Durable      bool          // acknowledged writes survive the server's restart
	Bootstrap    bool          // a lone instance without a memory is new
	DB           int           // the database's number
	Cluster      bool
	Failover     bool                  // Sentinel or Cluster: a replica's refusal is temporary
	WaitReplicas int                   // how many replicas must have a grant or a renewal
	Abandon      func(since time.Time) // ends the connection of a call whose caller left; nil: the client is the application's
	Repeats      bool                  // the client may send a call twice
	Notify       func(driver.Notice)
}

// check sets the defaults, and refuses what no node can be.
func (cfg *Config) check() error {
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = redisurl.DefaultCallTimeout
	}
	if cfg.Notify == nil {
		cfg.Notify = func(driver.Notice) {}
	}
	switch {
	case cfg.CallTimeout < driver.MinTTL:
		return driver.Invalid("CallTimeout", "must be at least %v, not %v", driver.MinTTL, cfg.CallTimeout)
	case cfg.WaitReplicas < 0:
		return driver.Invalid("WaitReplicas", "must be 0 or more, not %d", cfg.WaitReplicas)
	case cfg.WaitReplicas > 0 && cfg.Cluster:
		return driver.Invalid("WaitReplicas", "is for one primary, and not for a Cluster")
	case cfg.Guard < 0:
		return driver.Invalid("RestartGuard", "must be 0 or more, not %v", cfg.Guard)
	case cfg.Guard > 0 && cfg.Guard < minTTL:
		return driver.Invalid("RestartGuard", "must be at least the least TTL, %v, not %v", minTTL, cfg.Guard)
	case cfg.Guard > 0 && cfg.Cluster:
		return driver.Invalid("RestartGuard", "is not for a Cluster, whose shards restart one by one")
	case cfg.Durable && cfg.Failover:
		return driver.Invalid("Durable", "is for one server: a failover may lose what was acknowledged, whatever the server does")
	case cfg.Guard == 0 && cfg.Bootstrap:
		return driver.Invalid("Bootstrap", "is for a lone instance with a restart guard; a quorum has its own")
	}
	return names.CheckPrefix(cfg.Prefix)
}

// DefaultAllowance is how far a lone instance's clock may be set back.
const DefaultAllowance = 100 * time.Millisecond
