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

// The state of a key is two records, each in a block of its own, so that a write
// that is cut off by a crash damages one of them at most. A record is one line of text
// with a checksum; what follows the line is left from longer ones.
//
// Tokens never go back, whatever the clock does:
//
//   - after a process died at any instant: its write went to the record that is not
//     needed. If that record is damaged, the limit of the other one holds;
//   - after the machine went down at any instant: the limit, which is above every
//     token that was given, was on the disk before the first of these was returned.
//     So one grant in ten seconds waits for the disk, and the others do not. After a
//     restart, which the boot's id tells, tokens go on above the limit. Where a system
//     has no such id, every grant waits for the disk.
//
// A new limit is announced in the record whose loss costs nothing, synced, and only
// then confirmed in the other: an announcement that nobody confirmed counts for nothing.
const (
	layout    = "dlock1"
	blockSize = 4096
	reserve   = uint64(10 * time.Second / time.Microsecond) // of tokens, between two syncs
)

// record is the owner that took the key last, and the counter of its tokens.
type record struct {
	seq       uint64 // the later record has the larger one
	fence     uint64 // the largest token given
	limit     uint64 // no token above it was given
	confirmed bool   // the limit is on the disk, in the other record
	boot      string // of the machine when this was written; empty: unknown
	held      bool   // false: the owner has released it
	mode      driver.Mode
	since     int64 // microseconds
	pid       int
	owner     string
	key       string // with the prefix
}

const format = layout + " seq=%d fence=%d limit=%d confirmed=%t boot=%q held=%t mode=%d since=%d pid=%d owner=%q key=%q"

// maxOwner is how much of an owner is kept; it is for people.
const maxOwner = 256

// encode returns the line. It always fits a block: a key has at most 512 bytes, and
// quoting makes each byte four at the most.
func (r *record) encode() []byte {
	owner := r.owner[:min(len(r.owner), maxOwner)]
	line := fmt.Appendf(nil, format, r.seq, r.fence, r.limit, r.confirmed, r.boot, r.held, r.mode, r.since, r.pid, owner, r.key)
	return fmt.Appendf(line, " crc=%08x\n", crc32.ChecksumIEEE(line))
}

var (
	errBlank   = errors.New("blank")
	errDamaged = errors.New("damaged")
	errLayout  = errors.New("of another layout")
)

func decode(block []byte) (*record, error) {
	if len(bytes.Trim(block, "\x00")) == 0 {
		return nil, errBlank
	}
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
	if _, err := fmt.Sscanf(string(line), format, &r.seq, &r.fence, &r.limit, &r.confirmed, &r.boot, &r.held, &r.mode, &r.since, &r.pid, &r.owner, &r.key); err != nil {
		return nil, errDamaged
	}
	return r, nil
}

// storage is a state file.
type storage interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// pair is the two records as they were read.
type pair struct {
	rec [2]*record // nil where err is set
	err [2]error
}

func read(f io.ReaderAt) *pair {
	p := &pair{}
	for i := range p.rec {
		block := make([]byte, blockSize)
		n, err := f.ReadAt(block, int64(i)*blockSize)
		if err != nil && !errors.Is(err, io.EOF) {
			p.err[i] = err
			continue
		}
		p.rec[i], p.err[i] = decode(block[:n])
	}
	return p
}

// at is the index of the later record, -1 where there is none.
func (p *pair) at() int {
	switch {
	case p.rec[0] == nil && p.rec[1] == nil:
		return -1
	case p.rec[0] == nil || p.rec[1] != nil && p.rec[1].seq > p.rec[0].seq:
		return 1
	}
	return 0
}

// latest is the later record, nil where there is none.
func (p *pair) latest() *record {
	if i := p.at(); i >= 0 {
		return p.rec[i]
	}
	return nil
}

func (p *pair) whole() bool { return p.rec[0] != nil && p.rec[1] != nil }

// counter returns the least token, which the next one must exceed. It is the limit if the last
// tokens may not be known.
func (p *pair) counter(boot string) (uint64, error) {
	for _, err := range p.err {
		if err != nil && !errors.Is(err, errBlank) && !errors.Is(err, errDamaged) {
			return 0, err
		}
	}
	if errors.Is(p.err[0], errDamaged) && errors.Is(p.err[1], errDamaged) {
		return 0, errDamaged
	}
	if p.whole() && p.latest().boot == boot {
		return p.latest().fence, nil
	}
	// One blank and one damaged record are the first write ever, cut off: no token was
	// given.
	var limit uint64
	for _, r := range p.rec {
		if r != nil {
			limit = max(limit, r.limit, r.fence)
		}
	}
	return limit, nil
}

// announced reports that the later record has a limit that nobody confirmed: a process
// died before, or the machine went down after that.
func (p *pair) announced() bool { return p.whole() && !p.latest().confirmed }

// spare is the index of the record to overwrite: a damaged one; otherwise the later one,
// because the other has the limit that is on the disk. A limit that was announced may count,
// so it is not overwritten.
func (p *pair) spare() int {
	for i, r := range p.rec {
		if r == nil {
			return i
		}
	}
	if p.announced() {
		return 1 - p.at()
	}
	return p.at()
}

// issue writes r with the next token and returns that. fresh says that the file was
// blank. Nobody else may be in issue on the same file.
func issue(f storage, r *record, floor uint64, now time.Time) (fence uint64, fresh bool, err error) {
	p := read(f)
	counter, err := p.counter(r.boot)
	if err != nil {
		return 0, false, err
	}
	if counter >= driver.MaxFence {
		return 0, false, errors.New("the counter has reached the largest token")
	}
	r.fence = driver.NextFence(counter, floor, now)
	last := p.latest()
	if last != nil {
		r.seq = last.seq + 1
	}
	if p.whole() && last.confirmed && last.boot == r.boot && r.boot != "" && r.fence <= last.limit {
		r.limit, r.confirmed = last.limit, true
		return r.fence, false, write(f, p.spare(), r)
	}
	if p.announced() { // then the larger limit must be on the disk before the other goes
		if err := f.Sync(); err != nil {
			return 0, false, err
		}
	}
	r.limit = min(r.fence+reserve, driver.MaxFence)
	if err := write(f, p.spare(), r); err != nil {
		return 0, false, err
	}
	if err := f.Sync(); err != nil {
		return 0, false, err
	}
	confirmation := *r
	confirmation.seq++
	confirmation.confirmed = true
	return r.fence, last == nil, write(f, 1-p.spare(), &confirmation)
}

// clearHolder notes that the holder with this token has gone, if it was the last.
func clearHolder(f storage, fence uint64) {
	p := read(f)
	if !p.whole() || p.latest().fence != fence || !p.latest().confirmed {
		return
	}
	r := *p.latest()
	r.seq++
	r.held = false
	_ = write(f, p.spare(), &r) // for people: see Lease.sign
}

func write(f io.WriterAt, i int, r *record) error {
	_, err := f.WriteAt(r.encode(), int64(i)*blockSize)
	return err
}
