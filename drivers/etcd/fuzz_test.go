package etcd_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
)

// What FuzzStored overwrites.
const (
	theBase   = iota // the base of the tokens, under another client
	ownEntry         // the entry of a holder
	anEntry          // an entry of another program, with any name
	aReader          // a shared entry of another program
	overwrite        // how many there are
)

// FuzzStored writes any values under the driver's path. No call crashes, a key with an entry is
// held whatever its value is, and tokens stay in their range and above a stored base.
func FuzzStored(f *testing.F) {
	if testing.Short() {
		f.Skip("starts a server")
	}
	for i, text := range []string{
		"dlock1 0", "dlock1 18446744073709551615", "dlock1 18446744073709550000", "dlock1 9007199254740991", "dlock1 9007199254740992", "dlock1 9007199254740000",
		"dlock1 1795000000000000", "dlock1 -1", "dlock1 1 ", "dlock1", "dlock2 5", "", "x",
	} {
		f.Add(uint8(theBase), text, i%2 == 0)
	}
	for i, text := range []string{
		"", "x", "dlock1|5|web|1", "dlock1|5|", "dlock1|18446744073709551615|o", "dlock1|9007199254740991|o", "dlock1|x|o", "dlock2|5|o", "\xff\x00", "read/1", "write/1/2", "read/1/2", "/", "a%2Fb",
	} {
		f.Add(uint8(ownEntry+i%3), text, i%2 == 0)
		f.Add(uint8(anEntry), text, i%2 == 1)
	}
	g := single(f)
	c := client(f, g)
	var runs atomic.Int64
	f.Fuzz(func(t *testing.T, what uint8, text string, shared bool) {
		t.Parallel()
		path := fmt.Sprintf("/fuzz%d/", runs.Add(1))
		a, b := open(t, "etcd://"+g.Addrs()[0]+path+"?call_timeout=1m"), open(t, "etcd://"+g.Addrs()[0]+path+"?call_timeout=1m")
		put := func(name, value string) {
			_, err := c.Put(t.Context(), name, value)
			must(t, err)
		}
		before := drivertest.Grant(t, a, drivertest.NewRequest("k", time.Minute))
		key := a.Path("k")
		switch what % overwrite {
		case theBase:
			drivertest.Release(t, before)
			put(path+".dlock", text)
			tokensOver(t, b, text)
			return
		case ownEntry:
			got, err := c.Get(t.Context(), key+"/", clientv3.WithPrefix())
			must(t, err)
			put(string(got.Kvs[0].Key), text)
		case anEntry:
			drivertest.Release(t, before)
			put(key+"/"+text, text)
		case aReader:
			drivertest.Release(t, before)
			put(key+"/read/x"+text, text)
		}
		reader := what%overwrite == aReader || what%overwrite == anEntry && strings.HasPrefix(text, "read/")
		req := drivertest.NewRequest("k", time.Minute)
		if shared {
			req.Mode = driver.Shared
		}
		l, err := drivertest.Acquire(t, b, req)
		switch {
		case shared && reader && err == nil:
			drivertest.Release(t, l)
		case shared && reader, !errors.Is(err, driver.ErrHeld):
			t.Errorf("Acquire beside the entry (shared: %v): %v", shared, err)
		}
		var listed []driver.Holder
		drivertest.Known(t, func() error {
			return b.List(t.Context(), "", func(s *driver.State) bool {
				if s.Key != "k" {
					t.Errorf("List has the key %q", s.Key)
				}
				listed = s.Holders
				return true
			})
		})
		var s *driver.State
		drivertest.Known(t, func() (err error) {
			s, err = b.Lookup(t.Context(), "k")
			return err
		})
		if len(s.Holders) != 1 || len(listed) != 1 || s.Holders[0].Fence != listed[0].Fence || (s.Mode == driver.Shared) != reader {
			t.Fatalf("Lookup: %+v; List: %+v", s, listed)
		}
		if f := s.Holders[0].Fence; f == 0 || f > driver.MaxFence || s.Holders[0].Owner == "" {
			t.Errorf("the holder is %+v", s.Holders[0])
		}
		drivertest.Known(t, func() error { return b.Break(t.Context(), "k", s.Holders[0]) })
		tokensOver(t, b, "dlock1 "+strconv.FormatUint(before.Grant().Fence, 10))
	})
}

// tokensOver takes a lock twice, under a base that is stored as this text.
func tokensOver(t *testing.T, b driver.Backend, text string) {
	number, ours := strings.CutPrefix(text, "dlock1 ")
	base, err := strconv.ParseUint(number, 10, 64)
	ours = ours && err == nil
	for last, i := base, 0; i < 2; i++ {
		l, err := drivertest.Acquire(t, b, drivertest.NewRequest("k", time.Minute))
		switch {
		case err != nil && (!errors.Is(err, driver.ErrRefused) || ours && base < driver.MaxFence-1e6):
			t.Errorf("Acquire: %v", err)
		case err == nil && (!ours || l.Grant().Fence <= last || l.Grant().Fence > driver.MaxFence):
			t.Errorf("token %d, and the stored base is %q", l.Grant().Fence, text)
		}
		if err != nil {
			return
		}
		last = l.Grant().Fence
		drivertest.Release(t, l)
	}
}
