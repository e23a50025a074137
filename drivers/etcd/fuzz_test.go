package etcd_test

import (
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
	entries := []string{"", "x", "dlock1|5|web|1", "dlock1|5|", "dlock1|18446744073709551615|o", "dlock1|9007199254740991|o", "dlock1|x|o", "dlock2|5|o", "\xff\x00"}
	for what, texts := range [][]string{
		theBase: {
			"dlock1 0", "dlock1 18446744073709551615", "dlock1 18446744073709550000", "dlock1 9007199254740991", "dlock1 9007199254740992", "dlock1 9007199254740000",
			"dlock1 1795000000000000", "dlock1 -1", "dlock1 1 ", "dlock1", "dlock2 5", "", "x",
		},
		ownEntry: entries,
		anEntry:  append(entries, "read/1", "write/1/2", "read/1/2", "/", "a%2Fb"),
		aReader:  {"", "/2"},
	} {
		for _, text := range texts {
			f.Add(uint8(what), text)
		}
	}
	g := single(f)
	c := client(f, g)
	var runs atomic.Int64
	f.Fuzz(func(t *testing.T, what uint8, text string) {
		t.Parallel()
		path := fmt.Sprintf("/fuzz%d", runs.Add(1))
		a, b := open(t, patientURL(g, path)), open(t, patientURL(g, path))
		put := func(name string) {
			_, err := c.Put(t.Context(), name, text)
			must(t, err)
		}
		before := drivertest.Grant(t, a, drivertest.NewRequest("k", time.Minute))
		key := a.Path("k")
		if what%overwrite != ownEntry {
			drivertest.Release(t, before)
		}
		switch what % overwrite {
		case theBase:
			put(path + "/.dlock")
			number, ours := strings.CutPrefix(text, "dlock1 ")
			base, err := strconv.ParseUint(number, 10, 64)
			ours = ours && err == nil
			drivertest.RunTokensOver(t, b, base, ours, ours && base < driver.MaxFence-1e6)
			return
		case ownEntry:
			got, err := c.Get(t.Context(), key+"/", clientv3.WithPrefix())
			must(t, err)
			put(string(got.Kvs[0].Key))
		case anEntry:
			put(key + "/" + text)
		case aReader:
			put(key + "/read/x" + text)
		}
		drivertest.RunStored(t, b, what%overwrite == aReader || what%overwrite == anEntry && strings.HasPrefix(text, "read/"))
		drivertest.RunTokensOver(t, b, before.Grant().Fence, true, true)
	})
}
