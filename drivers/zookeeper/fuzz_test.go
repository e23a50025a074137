package zookeeper_test

import (
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/zookeeper"
)

// What FuzzStored overwrites.
const (
	theMark    = iota // the marker, under another client
	theCounter        // the data of a lock's container
	ownEntry          // the data of a holder's entry
	anEntry           // an entry of another program, with any name
	overwrite         // how many there are
)

// FuzzStored writes any data under the driver's path. No call crashes, a key with an entry is
// held whatever its data are, and tokens stay in their range and above a stored counter.
func FuzzStored(f *testing.F) {
	if testing.Short() {
		f.Skip("starts a server")
	}
	for _, text := range []string{
		"dlock1 0 0", "dlock1 9223372036854775807 0", "dlock1 9223372036854775 0", "dlock1 9007199254740991 0", "dlock1 0 9223372036854775807", "dlock1 0 9000000000000",
		"dlock1 9007199254740991 9000000000000", "dlock1 -1 0", "dlock1 0 -9223372036854775808", "dlock1 1 2 3", "dlock1 1 2x", "dlock2 1 2", "", "x",
	} {
		f.Add(uint8(theMark), text)
	}
	for _, text := range []string{
		"dlock1 0", "dlock1 1795000000000000", "dlock1 9007199254740990", "dlock1 9007199254740991", "dlock1 9007199254740992", "dlock1 18446744073709551615", "dlock1 x", "dlock2 1", "", "{}",
	} {
		f.Add(uint8(theCounter), text)
	}
	for _, text := range []string{"", "x", "dlock1|5|web|1", "dlock1|5|", "dlock1|0|o", "dlock1|18446744073709551615|o", "dlock2|5|o", "\xff\x00", "a-shared-lock-", "__rlock__/"} {
		f.Add(uint8(ownEntry), text)
		f.Add(uint8(anEntry), text)
	}
	g := single(f)
	c := client(f, g)
	f.Fuzz(func(t *testing.T, what uint8, text string) {
		path := "/fuzz-" + rand.Text()
		url := "zk://" + g.Addrs()[0] + path + "?call_timeout=1m"
		a, b := open(t, url), open(t, url)
		before := drivertest.Grant(t, a, drivertest.NewRequest("k", time.Minute))
		dir := a.Path("k")
		set := func(node string) {
			drivertest.Known(t, func() error {
				_, err := c.Set(node, []byte(text), -1)
				return err
			})
		}
		entries := func() (names []string) {
			drivertest.Known(t, func() (err error) {
				names, _, err = c.Children(dir)
				return err
			})
			if len(names) != 1 {
				t.Fatalf("%q is no entry", names)
			}
			return names
		}
		const above = "dlock1 "
		switch what % overwrite {
		case theMark:
			drivertest.Release(t, before)
			set(path + "/.dlock")
			advance, _, _ := strings.Cut(strings.TrimPrefix(text, above), " ")
			us, err := strconv.ParseUint(advance, 10, 64)
			ours := strings.HasPrefix(text, above) && err == nil && strings.Count(text, " ") == 2
			tokensOver(t, b, max(before.Grant().Fence, min(us, driver.MaxFence-1)), ours, ours && us < 1e15 && strings.HasSuffix(text, " 0"))
			return
		case theCounter:
			drivertest.Release(t, before)
			set(dir)
			n, err := strconv.ParseUint(strings.TrimPrefix(text, above), 10, 64)
			ours := strings.HasPrefix(text, above) && err == nil
			tokensOver(t, b, n, ours || text == "", text == "" || ours && n < driver.MaxFence-1e6)
			return
		case ownEntry:
			set(dir + "/" + entries()[0])
		case anEntry:
			drivertest.Release(t, before)
			// With FlagSequence, an entry made by a lost answer would be joined by a second one.
			drivertest.Known(t, func() error {
				_, err := c.Create(dir+"/x"+zookeeper.Escape(text)+"0000000009", []byte(text), 0, zk.WorldACL(zk.PermAll))
				if errors.Is(err, zk.ErrNodeExists) {
					return nil
				}
				return err
			})
		}
		children := entries()
		_, shared := zookeeper.ParseQueue(children)
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			req := drivertest.NewRequest("k", time.Minute)
			req.Mode = mode
			l, err := drivertest.Acquire(t, b, req)
			switch both := shared[0] && mode == driver.Shared; {
			case both && err == nil:
				drivertest.Release(t, l)
			case both, !errors.Is(err, driver.ErrHeld):
				t.Errorf("Acquire beside %q (%v): %v", children, mode, err)
			}
		}
		var s *driver.State
		drivertest.Known(t, func() (err error) {
			s, err = b.Lookup(t.Context(), "k")
			return err
		})
		if len(s.Holders) != 1 || (s.Mode == driver.Shared) != shared[0] {
			t.Fatalf("Lookup: %+v", s)
		}
		if f := s.Holders[0].Fence; f == 0 || f > driver.MaxFence || s.Holders[0].Owner == "" {
			t.Errorf("the holder is %+v", s.Holders[0])
		}
		drivertest.Known(t, func() error { return b.List(t.Context(), "", func(*driver.State) bool { return true }) })
		drivertest.Known(t, func() error { return b.Break(t.Context(), "k", s.Holders[0]) })
		tokensOver(t, b, before.Grant().Fence, true, true)
	})
}

// tokensOver takes a lock twice. Its tokens must be above last. may says that it may be granted,
// and must that it must be.
func tokensOver(t *testing.T, b driver.Backend, last uint64, may, must bool) {
	for range 2 {
		l, err := drivertest.Acquire(t, b, drivertest.NewRequest("k", time.Minute))
		switch {
		case err != nil && (must || !errors.Is(err, driver.ErrRefused)):
			t.Errorf("Acquire: %v", err)
		case err == nil && !may:
			t.Error("granted, though another program's data are stored")
		case err == nil && (l.Grant().Fence <= last || l.Grant().Fence > driver.MaxFence):
			t.Errorf("token %d after %d", l.Grant().Fence, last)
		}
		if err != nil {
			return
		}
		last = l.Grant().Fence
		drivertest.Release(t, l)
	}
}
