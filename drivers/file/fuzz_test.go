package file

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// FuzzState writes any records, with checksums that are right if sealed, where the counter and the
// holder of a key stand. No call crashes, only the lock itself says whether the key is held, and tokens
// rise, even if the clock stands still.
func FuzzState(f *testing.F) {
	line := func(seq, fence, limit uint64, rest string) []byte {
		return fmt.Appendf(nil, `dlock2 seq=%d fence=%d limit=%d %s`, seq, fence, limit, rest)
	}
	const rest = `confirmed=true boot="b" held=true mode=0 since=1 pid=1 owner="o/1" key="k"`
	const most = ^uint64(0)
	good := line(7, 5, 9, rest)
	for i, seed := range [][2][]byte{
		{good, line(8, 6, 9, rest)},
		{good, nil},
		{nil, []byte("garbage")},
		{[]byte("dlock3 "), good},
		{good, line(most, 6, 9, rest)},
		{line(most, 5, 9, rest), line(most, 6, 9, rest)},
		{good, line(driver.MaxFence, 6, 9, rest)},
		{good, line(8, driver.MaxFence, driver.MaxFence, rest)},
		{good, line(8, most, most, rest)},
		{line(7, most, 0, rest), line(8, 0, most, rest)},
		{good, line(8, 9, 5, rest)},
		{good, line(8, 6, 9, `confirmed=false boot="" held=true mode=255 since=-9223372036854775808 pid=-1 owner="" key=""`)},
		{good, line(8, 6, 9, `confirmed=true boot="b" held=false mode=1 since=9223372036854775807 pid=0 owner="\xff|\n" key="other"`)},
		{[]byte("dlock2 seq=-1 fence=1e9 limit=0x9"), []byte("dlock2 seq=99999999999999999999 fence=1")},
	} {
		f.Add(seed[0], seed[1], true, uint8(i))
	}
	for held := range uint8(3) {
		f.Add(good, line(9, 8, 7, rest), held > 0, held)
		f.Add(good, line(8, most, most, rest), true, held)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, seal bool, held uint8) {
		var state [2 * blockSize]byte
		for i, text := range [][]byte{first, second} {
			if len(text) == 0 {
				continue
			}
			if seal {
				text = fmt.Appendf(text[:len(text):len(text)], " crc=%08x\n", crc32.ChecksumIEEE(text))
			}
			copy(state[i*blockSize:][:blockSize], text)
		}
		given(t, &disk{cache: state, left: 1 << 30})

		folder := t.TempDir()
		a, b := open(t, folder), open(t, folder)
		l := acquire(t, a, request("k", func(r *driver.Request) { r.Mode = driver.Mode(held % 3 / 2) }))
		if held%3 == 0 {
			release(t, l)
		}
		for _, path := range []string{a.files("k").gate, l.path} {
			must(t, os.WriteFile(path, state[:], 0o600))
		}
		for range 2 {
			s, err := b.Lookup(t.Context(), "k")
			if err != nil || (len(s.Holders) == 0) != (held%3 == 0) || s.Fence > driver.MaxFence {
				t.Errorf("Lookup: %+v, %v", s, err)
			}
			if err := b.List(t.Context(), "", func(*driver.State) bool { return true }); err != nil {
				t.Errorf("List: %v", err)
			}
			next, err := b.Acquire(t.Context(), request("k"))
			switch {
			case err == nil && held%3 != 0:
				t.Errorf("a second owner, with token %d", next.Grant().Fence)
			case err == nil:
				release(t, next.(*Lease))
			case held%3 != 0 && !errors.Is(err, driver.ErrHeld), held%3 == 0 && !errors.Is(err, driver.ErrRefused):
				t.Errorf("Acquire: %v", err)
			}
		}
		if held%3 != 0 {
			release(t, l)
		}
	})
}

// given takes tokens from a state, by processes whose clock stands still and that cannot tell
// whether the machine has restarted.
func given(t *testing.T, d *disk) {
	var last uint64
	if p, err := read(d); err == nil {
		last = p.later.fence
	}
	for i := range 8 {
		fence, err := issue(d, []string{"b", "b", "b", "c", ""}[i%5], 0, 1, time.UnixMicro(0))
		switch {
		case err != nil && !errors.Is(refused(err, "k.state"), driver.ErrRefused):
			t.Errorf("issue: %v", err)
		case err == nil && (fence <= last || fence > driver.MaxFence):
			t.Errorf("token %d after %d", fence, last)
		}
		if err != nil {
			return
		}
		last = fence
	}
}
