package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

func TestARecordReadsBackAsItWasWritten(t *testing.T) {
	for _, key := range []string{"k", " crc=00000000", "\x00\xff\n\"`%d", "ключ", strings.Repeat("\x00", driver.MaxKey), strings.Repeat("\u0085", driver.MaxKey/2)} {
		r := record{seq: 7, fence: driver.MaxFence, limit: driver.MaxFence, confirmed: true, boot: "b 1", held: true, mode: driver.Shared, since: time.Now().UnixMicro(), pid: 1 << 22, owner: "web-4/2211/" + key[:1], key: key}
		line := r.encode()
		if len(line) > blockSize {
			t.Fatalf("key %q: %d bytes do not fit a block", key, len(line))
		}
		got, err := decode(append(line, "rest of a longer one\n"...))
		if err != nil || *got != r {
			t.Errorf("key %q: read %+v, %v", key, got, err)
		}
		for i := range line {
			damaged := append([]byte{}, line...)
			damaged[i] ^= 0x40
			if _, err := decode(damaged); err == nil {
				t.Fatalf("key %q: damage of byte %d goes unnoticed", key, i)
			}
			if i > 0 {
				if _, err := decode(line[:i]); !errors.Is(err, errDamaged) {
					t.Fatalf("key %q: cut off at %d: %v", key, i, err)
				}
			}
		}
	}
	long := record{owner: strings.Repeat("\x00", 9999), key: strings.Repeat("\x00", driver.MaxKey)}
	if n := len(long.encode()); n > blockSize {
		t.Errorf("%d bytes do not fit a block", n)
	}
}

// disk is a state file on a machine that may go down, used by processes that may die.
type disk struct {
	cache, platter [2 * blockSize]byte
	dirty          [2]bool
	rng            *rand.Rand
	left           int // how many writes and syncs the process lives for
}

// newDisk has a new counter.
func newDisk() *disk {
	d := &disk{left: 1 << 30}
	_ = beginAt(d, 0) // it lives for long
	return d
}

var errCrash = errors.New("crash")

func (d *disk) ReadAt(p []byte, off int64) (int, error) {
	n := copy(p, d.cache[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (d *disk) WriteAt(p []byte, off int64) (int, error) {
	if d.left--; d.left < 0 {
		n := d.rng.IntN(len(p) + 1)
		copy(d.cache[off:], p[:n])
		d.dirty[off/blockSize] = true
		return n, errCrash
	}
	d.dirty[off/blockSize] = true
	return copy(d.cache[off:], p), nil
}

func (d *disk) Sync() error {
	if d.left--; d.left < 0 {
		return errCrash
	}
	d.platter, d.dirty = d.cache, [2]bool{}
	return nil
}

// powerLoss sets each block that was not synced to its old content, its new content, or a
// mixture of both.
func (d *disk) powerLoss() {
	for i, dirty := range d.dirty {
		if !dirty {
			continue
		}
		from, to := i*blockSize, (i+1)*blockSize
		switch d.rng.IntN(3) {
		case 0:
			to = from
		case 1:
			to = from + d.rng.IntN(300)
		}
		copy(d.platter[from:to], d.cache[from:to])
	}
	d.cache, d.dirty = d.platter, [2]bool{}
}

// write-backs happen at any time, too.
func (d *disk) writeBack() {
	i := d.rng.IntN(2)
	copy(d.platter[i*blockSize:(i+1)*blockSize], d.cache[i*blockSize:])
	d.dirty[i] = false
}

func TestTokensRiseThroughCrashesPowerLossesAndABackwardClock(t *testing.T) {
	t.Parallel()
	seeds := 50
	if testing.Short() {
		seeds = 15
	}
	grants, crashes, losses := 0, 0, 0
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 1))
		d := newDisk()
		d.rng = rng
		tells := seed%5 != 0 // this system tells its restarts
		boot := ""
		restart := func() {
			if tells {
				boot = fmt.Sprint("boot ", rng.Uint64())
			}
		}
		restart()
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		last := uint64(0)
		for range 200 {
			now = now.Add(time.Duration(rng.Int64N(int64(12*time.Second))) - 5*time.Second)
			d.left = 1 << 30
			if rng.IntN(4) == 0 {
				d.left = rng.IntN(4)
			}
			fence, err := issue(d, boot, 0, 1, now)
			switch {
			case err == nil:
				if fence <= last {
					t.Fatalf("seed %d: token %d after %d", seed, fence, last)
				}
				last = fence
				grants++
			case errors.Is(err, errCrash):
				crashes++
			default:
				t.Fatalf("seed %d: %v", seed, err)
			}
			switch rng.IntN(8) {
			case 0:
				d.powerLoss()
				losses++
				restart()
				now = now.Add(-time.Duration(rng.Int64N(int64(time.Hour)))) // no battery
			case 1:
				d.writeBack()
			}
		}
	}
	if grants < 100*seeds || crashes < 10*seeds || losses < 10*seeds {
		t.Errorf("%d grants, %d crashes, %d power losses in %d runs: too few to show anything", grants, crashes, losses, seeds)
	}
	t.Logf("%d grants, %d crashes, %d power losses", grants, crashes, losses)
}

func TestOnlyANewLimitWaitsForTheDisk(t *testing.T) {
	d := &countingDisk{disk: *newDisk()}
	now := time.Now()
	for i := range 1000 {
		if _, err := issue(d, "b", 0, 1, now.Add(time.Duration(i)*10*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.HasPrefix(d.cache[4096:], []byte(layout)) { // also other releases look there
		t.Error("the second record is not in the second block")
	}
	if d.syncs != 1 {
		t.Errorf("%d syncs in the ten seconds of one limit, want 1", d.syncs)
	}
	if _, err := issue(d, "b", 0, 1, now.Add(11*time.Second)); err != nil || d.syncs != 2 {
		t.Errorf("%d syncs after it, want 2; %v", d.syncs, err)
	}
	if _, err := issue(d, "after a restart", 0, 1, now); err != nil || d.syncs != 3 {
		t.Errorf("%d syncs after a restart, want 3; %v", d.syncs, err)
	}
}

type countingDisk struct {
	disk
	syncs int
}

func (d *countingDisk) Sync() error {
	d.syncs++
	return d.disk.Sync()
}
