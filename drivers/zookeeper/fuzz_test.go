package zookeeper_test

import (
	"crypto/rand"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
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
	for what, texts := range [][]string{
		theMark: {
			"dlock1 0 0", "dlock1 9223372036854775807 0", "dlock1 9223372036854775 0", "dlock1 9007199254740991 0", "dlock1 0 9223372036854775807", "dlock1 0 9000000000000",
			"dlock1 9007199254740991 9000000000000", "dlock1 -1 0", "dlock1 0 -9223372036854775808", "dlock1 1 2 3", "dlock1 1 2x", "dlock2 1 2", "", "x",
		},
		theCounter: {
			"dlock1 0", "dlock1 1795000000000000", "dlock1 9007199254740990", "dlock1 9007199254740991", "dlock1 9007199254740992", "dlock1 18446744073709551615", "dlock1 x", "dlock2 1", "", "{}",
		},
		ownEntry: {"", "x", "dlock1|5|web|1", "dlock1|5|", "dlock1|0|o", "dlock1|18446744073709551615|o", "dlock2|5|o", "\xff\x00"},
		anEntry:  {"", "x", "dlock1|5|web|1", "dlock1|0|o", "\xff\x00", "a-shared-lock-"},
	} {
		for _, text := range texts {
			f.Add(uint8(what), text)
		}
	}
	g := single(f)
	c := client(f, g)
	f.Fuzz(func(t *testing.T, what uint8, text string) {
		path := "/fuzz-" + rand.Text()
		where := "zk://" + g.Addrs()[0] + path + "?call_timeout=1m"
		a, b := open(t, where), open(t, where)
		before := drivertest.Grant(t, a, drivertest.NewRequest("k", time.Minute))
		dir := a.Path("k")
		set := func(node string) {
			drivertest.Known(t, func() error {
				_, err := c.Set(node, []byte(text), -1)
				return err
			})
		}
		number, ours := strings.CutPrefix(text, "dlock1 ")
		switch what % overwrite {
		case theMark:
			drivertest.Release(t, before)
			set(path + "/.dlock")
			advance, _, two := strings.Cut(number, " ")
			us, err := strconv.ParseUint(advance, 10, 64)
			ours = ours && err == nil && two && strings.Count(number, " ") == 1
			drivertest.RunTokensOver(t, b, max(before.Grant().Fence, min(us, driver.MaxFence-1)), ours, ours && us < 1e15 && strings.HasSuffix(text, " 0"))
			return
		case theCounter:
			drivertest.Release(t, before)
			set(dir)
			n, err := strconv.ParseUint(number, 10, 64)
			ours = ours && err == nil
			drivertest.RunTokensOver(t, b, n, ours || text == "", text == "" || ours && n < driver.MaxFence-1e6)
			return
		case ownEntry:
			drivertest.Known(t, func() error {
				names, _, err := c.Children(dir)
				if err == nil {
					set(dir + "/" + names[0])
				}
				return err
			})
		case anEntry:
			drivertest.Release(t, before)
			// With FlagSequence, an entry made by a lost answer would be joined by a second one.
			drivertest.Known(t, func() error {
				_, err := c.Create(dir+"/x"+url.PathEscape(text)+"0000000009", []byte(text), 0, zk.WorldACL(zk.PermAll))
				if errors.Is(err, zk.ErrNodeExists) {
					return nil
				}
				return err
			})
		}
		drivertest.RunStored(t, b, what%overwrite == anEntry && strings.Contains(url.PathEscape(text), "-shared-lock-"))
		drivertest.RunTokensOver(t, b, before.Grant().Fence, true, true)
	})
}
