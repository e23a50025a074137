package zookeeper_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/adler32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// setNextSequence changes what a member that does not run has stored: the number of the next entry of
// a node. It writes the last snapshot anew.
func setNextSequence(t *testing.T, dir, node string, next int32) {
	t.Helper()
	var snapshots []string
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), "snapshot.") {
			snapshots = append(snapshots, path)
		}
		return err
	}))
	slices.SortFunc(snapshots, func(x, y string) int { // their names end with a hexadecimal number
		return len(x)*1000 + strings.Compare(x, y) - len(y)*1000
	})
	last := snapshots[len(snapshots)-1]
	data, err := os.ReadFile(last)
	must(t, err)
	name := append(binary.BigEndian.AppendUint32(nil, uint32(len(node))), node...)
	at := bytes.Index(data, name)
	if at < 0 {
		t.Fatalf("%s is not in %s", node, last)
	}
	at += len(name)
	at += 4 + int(binary.BigEndian.Uint32(data[at:])) // the node's data
	at += 8 + 4*8 + 4                                 // its permissions, two transactions, two times, a version
	binary.BigEndian.PutUint32(data[at:], uint32(next))
	const seal = 8 + 4 + 1 // the sum, and the text "/"
	content := data[:len(data)-seal]
	binary.BigEndian.PutUint64(data[len(content):], uint64(adler32.Checksum(content)))
	must(t, os.WriteFile(last, data, 0o600))
}

// TestSequenceNumbersEnd: after 2^31 entries of a node ZooKeeper gives all entries the same number. A
// key is refused before, until it has no entries, and then goes on with larger tokens.
func TestSequenceNumbersEnd(t *testing.T) {
	server.Deep(t)
	t.Parallel()
	dir := t.TempDir()
	g := server.ZooKeeper(t, 1, func(c *server.Config) { c.Dir = dir }, server.WithArgs("-Dzookeeper.digest.enabled=false"))
	b := open(t, "zk://"+g.Addrs()[0]+"?call_timeout=30s")
	const ttl = 2 * time.Minute
	first := drivertest.Grant(t, b, drivertest.NewRequest("k", ttl))
	drivertest.Release(t, first)
	must(t, g.Kill())
	must(t, g.Start()) // writes a snapshot
	must(t, g.Kill())
	setNextSequence(t, dir, b.Path("k"), 1<<31-2)
	must(t, g.Start())

	endsAndGoesOn(t, g, b, first.Grant().Fence)
}

// TestAContainerThatHadManyEntries is TestSequenceNumbersEnd with smaller numbers.
func TestAContainerThatHadManyEntries(t *testing.T) {
	t.Parallel()
	g := single(t)
	b := open(t, "zk://"+g.Addrs()[0]+"/"+t.Name()+"?call_timeout=30s")
	b.SetEntries(22)
	var before uint64
	for range 25 {
		l := drivertest.Grant(t, b, drivertest.NewRequest("k", 2*time.Minute))
		if l.Grant().Fence <= before {
			t.Errorf("token %d after %d", l.Grant().Fence, before)
		}
		before = l.Grant().Fence
		drivertest.Release(t, l)
	}
	c := client(t, g)
	for range 22 {
		made, err := c.Create(b.Path("k")+"/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		must(t, err)
		must(t, c.Delete(made, -1))
	}
	endsAndGoesOn(t, g, b, before)
}

// endsAndGoesOn refuses a key that has used up its numbers while it has an entry, and takes it then.
func endsAndGoesOn(t *testing.T, g *server.Group, b *zookeeper.Backend, before uint64) {
	const ttl = 2 * time.Minute
	c := client(t, g)
	theirs, err := c.Create(b.Path("k")+"/_c_0b2c4d6e-1111-4222-8333-abcdefabcdef-lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	must(t, err)
	for _, wait := range []bool{false, true} {
		r := drivertest.NewRequest("k", ttl)
		r.Wait = wait
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "2^31") {
			t.Errorf("an entry at the end (wait: %v): %v", wait, err)
		}
	}
	must(t, c.Delete(theirs, -1))
	for range 2 {
		l := drivertest.Grant(t, b, drivertest.NewRequest("k", ttl))
		if l.Grant().Fence <= before {
			t.Errorf("token %d after %d", l.Grant().Fence, before)
		}
		before = l.Grant().Fence
		for range 2 {
			if _, err := drivertest.Acquire(t, b, drivertest.NewRequest("k", ttl)); drivertest.Verdict(err) != "held" {
				t.Errorf("beside the holder: %v", err)
			}
		}
		waiting := drivertest.NewRequest("k", ttl)
		waiting.Wait = true
		next := drivertest.Waiter(t, b, waiting)
		drivertest.AwaitWaiters(t, b, "k", 1)
		drivertest.Release(t, l)
		if l := <-next; l != nil {
			before = max(before, l.Grant().Fence)
			drivertest.Release(t, l)
		}
	}
}
