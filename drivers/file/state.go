package file

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A counter of tokens is two records, each in its own block, so that a write that a crash cuts off
// damages at most one of them. A record is one line of text with a checksum. The text after the
// line is left from longer lines. The holder of a key writes a record into the lock file, for
// people.
//
// Tokens never go back, even if the clock does:
//
//   - after a process died at any instant: its write went to the record that is not needed. If
//     that record is damaged, the other record's limit holds;
//   - after the machine went down at any instant: a limit above every given token was on the
//     disk before the first of these tokens was returned. So only one grant in ten seconds
//     waits for the disk. After a restart, which the boot id shows, tokens go on above the
//     limit. On a system without a boot id every grant waits for the disk.
//
// A new limit is first announced in the record that is not needed, and synced, and only then
// confirmed in the other. An announcement without confirmation has no effect.
const (
	layout    = "dlock2" // the first that was released
	blockSize = 4096
	reserve   = uint64(10 * time.Second / time.Microsecond) // how far tokens may go, as time, between two syncs
)

// record is one of a counter, or the holder in a lock file.
type record struct {
	seq       uint64 // the later record of a counter has the larger one; a holder has how many tokens it asked for
	fence     uint64 // the largest token given
	limit     uint64 // no larger token was given
	confirmed bool   // the other record has the limit on the disk
	boot      string // the boot id when this was written; empty: unknown
	held      bool   // false: the owner has released it
	mode      driver.Mode
	since     int64 // microseconds
	pid       int
	owner     string
	key       string // with the prefix
}

const format = " seq=%d fence=%d limit=%d confirmed=%t boot=%q held=%t mode=%d since=%d pid=%d owner=%q key=%q"

// maxOwner is how many bytes of an owner are stored, for people.
const maxOwner = 256

// encode returns the line. It always fits a block: a key has at most 512 bytes, and
// quoting makes each byte four at the most.
func (r *record) encode() []byte {
	owner := r.owner[:min(len(r.owner), maxOwner)]
	line := fmt.Appendf(nil, layout+format, r.seq, r.fence, r.limit, r.confirmed, r.boot, r.held, r.mode, r.since, r.pid, owner, r.key)
	return fmt.Appendf(line, " crc=%08x\n", crc32.ChecksumIEEE(line))
}

var (
	errDamaged = errors.New("damaged")
	errLayout  = errors.New("of another layout")
	errEnd     = errors.New("at its end")
)

func decode(block []byte) (*record, error) {
	text, _, ok := bytes.Cut(block, []byte("\n"))
	split := len(text) - len(" crc=00000000")
	if !ok || split < 0 {
		return nil, errDamaged
	}
	line := text[:split]
	if string(text[split:]) != fmt.Sprintf(" crc=%08x", crc32.ChecksumIEEE(line)) {
		return nil, errDamaged
	}
	if !bytes.HasPrefix(line, []byte(layout+" ")) {
		return nil, errLayout
	}
	r := &record{}
	if _, err := fmt.Sscanf(string(line), layout+format, &r.seq, &r.fence, &r.limit, &r.confirmed, &r.boot, &r.held, &r.mode, &r.since, &r.pid, &r.owner, &r.key); err != nil {
		return nil, errDamaged
	}
	if max(r.seq, r.limit) > driver.MaxFence || r.fence > r.limit { // no release writes it, and r.seq must not overflow
		return nil, errDamaged
	}
	return r, nil
}

// storage is the file of a counter.
type storage interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// readRecord reads the record in block i.
func readRecord(f io.ReaderAt, i int64) (*record, error) {
	block := make([]byte, blockSize)
	n, err := f.ReadAt(block, i*blockSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return decode(block[:n])
}

// pair has the two records of a counter as they were read.
type pair struct {
	later, other *record // other is nil if it is damaged
	at           int     // the block of later
}

// read reads a counter, which is made with both records. One may be damaged.
func read(f io.ReaderAt) (*pair, error) {
	var rec [2]*record
	for i := range rec {
		r, err := readRecord(f, int64(i))
		if err != nil && !errors.Is(err, errDamaged) {
			return nil, err
		}
		rec[i] = r
	}
	switch {
	case rec[0] == nil && rec[1] == nil:
		return nil, errDamaged
	case rec[0] == nil || rec[1] != nil && rec[1].seq > rec[0].seq:
		return &pair{rec[1], rec[0], 1}, nil
	}
	return &pair{rec[0], rec[1], 0}, nil
}

// counter returns the number that the next token must exceed. It is the limit if the last
// tokens may be unknown.
func (p *pair) counter(boot string) uint64 {
	switch {
	case p.other == nil:
		return p.later.limit
	case p.later.boot == boot:
		return p.later.fence
	}
	return max(p.later.limit, p.other.limit)
}

// announced reports whether the later record has a limit without confirmation: a process died
// before it confirmed, or the machine went down.
func (p *pair) announced() bool { return p.other != nil && !p.later.confirmed }

// spare returns the block to overwrite: a damaged one, otherwise the later one, because the other
// has the limit that is on the disk. It does not overwrite an announced limit, which may be in
// effect.
func (p *pair) spare() int {
	if p.other == nil || p.announced() {
		return 1 - p.at
	}
	return p.at
}

// issue draws the next n tokens and returns the last. Only one issue may run on a counter at a time.
func issue(f storage, boot string, floor, n uint64, now time.Time) (uint64, error) {
	p, err := read(f)
	if err != nil {
		return 0, err
	}
	counter, last := p.counter(boot), p.later
	if counter+n > driver.MaxFence {
		return 0, errEnd
	}
	r := &record{seq: last.seq + 1, fence: driver.NextFence(counter+n-1, floor, now), boot: boot}
	if p.other != nil && last.confirmed && last.boot == boot && boot != "" && r.fence <= last.limit {
		r.limit, r.confirmed = last.limit, true
		return r.fence, write(f, p.spare(), r)
	}
	if p.announced() { // then the larger limit must be on the disk before the other record is overwritten
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	r.limit = min(r.fence+reserve, driver.MaxFence)
	if err := write(f, p.spare(), r); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	confirmation := *r
	confirmation.seq++
	confirmation.confirmed = true
	return r.fence, write(f, 1-p.spare(), &confirmation)
}

// beginAt writes both records of a counter whose tokens are above limit.
func beginAt(f storage, limit uint64) error {
	for i := range 2 {
		if err := write(f, i, &record{seq: uint64(i), fence: limit, limit: limit, confirmed: true}); err != nil {
			return err
		}
	}
	return f.Sync()
}

// holder returns the record in a lock file, nil where there is none.
func holder(f io.ReaderAt) *record {
	r, _ := readRecord(f, 0) // it is for people
	return r
}

func write(f io.WriterAt, i int, r *record) error {
	_, err := f.WriteAt(r.encode(), int64(i)*blockSize)
	return err
}
