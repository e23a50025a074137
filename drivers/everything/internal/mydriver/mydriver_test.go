package mydriver_test

import (
	"os"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/everything/internal/mydriver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(addr string) (driver.Backend, error) { return mydriver.New(addr) })
	os.Exit(m.Run())
}

func harness(t *testing.T) redlocktest.Harness {
	s := server.Command(t, []string{"redis-server", "--port", "{port}", "--dir", "{data}", "--appendonly", "yes", "--appendfsync", "always"}, nil)
	h := fault.Harness(s.Addr(), func(addr string) (driver.Backend, error) { return mydriver.New(addr) })
	h.Grace = 20 * time.Millisecond // the server keeps a lock so much longer than its TTL
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(s.Addr()) }
	h.Faults.Kill, h.Faults.Restart = s.Kill, s.StartAgain
	h.Faults.Pause, h.Faults.Resume = s.Pause, s.Resume
	return h
}

func TestConformance(t *testing.T) { redlocktest.Run(t, harness(t)) }
func TestStress(t *testing.T)      { redlocktest.Stress(t, harness(t), redlocktest.StressOptions{}) }
