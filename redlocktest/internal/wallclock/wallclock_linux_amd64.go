package wallclock

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// clockGettime replaces the kernel's function of this name, which the Go runtime calls to read the
// clocks. It makes the system call, and adds the seconds in the last eight bytes to the wall clock:
//
//	mov eax, 228; syscall; test edi, edi; jne end; mov rcx, [rip+14]; add [rsi], rcx; end: ret
var clockGettime = []byte{
	0xb8, 228, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x75, 10,
	0x48, 0x8b, 0x0d, 14, 0, 0, 0, 0x48, 0x01, 0x0e, 0xc3,
	39: 0,
}

const secondsAt = 32

// seconds is the number that clockGettime adds, in the code that the runtime calls.
var seconds = sync.OnceValues(replace)

// Set puts the wall clock of this process, and of no other, ahead of the machine's by whole
// seconds, or behind it if negative. Timers, the monotonic clock and the clocks of system calls do
// not change.
func Set(ahead time.Duration) error {
	s, err := seconds()
	if err != nil {
		return fmt.Errorf("a wall clock of its own: %w", err)
	}
	s.Store(int64(ahead / time.Second))
	return nil
}

// replace makes the runtime call clockGettime: it overwrites the variable with the address of the
// kernel's function, which the runtime found when the process started.
func replace() (*atomic.Int64, error) {
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	defer memory.Close() //nolint:errcheck // it is only read
	maps, err := mappings()
	if err != nil {
		return nil, err
	}
	old, err := kernelFunction(memory, maps)
	if err != nil {
		return nil, err
	}
	at, err := variable(memory, maps, old)
	if err != nil {
		return nil, err
	}
	code, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, err
	}
	copy(code, clockGettime)
	(*(**atomic.Uintptr)(unsafe.Pointer(&at))).Store(uintptr(unsafe.Pointer(&code[0])))
	return (*atomic.Int64)(unsafe.Pointer(&code[secondsAt])), nil
}

// A mapping is a line of /proc/self/maps.
type mapping struct {
	from, to     uint64
	rights, name string
}

func mappings() (all []mapping, err error) {
	text, err := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(text)) {
		var m mapping
		var skip string
		_, _ = fmt.Sscanf(line, "%x-%x %s %s %s %s %s", &m.from, &m.to, &m.rights, &skip, &skip, &skip, &m.name) // some have no name
		all = append(all, m)
	}
	return all, err
}

// kernelFunction returns the address of the kernel's function in this process.
func kernelFunction(memory io.ReaderAt, maps []mapping) (uint64, error) {
	for _, m := range maps {
		if m.name != "[vdso]" {
			continue
		}
		f, err := elf.NewFile(io.NewSectionReader(memory, int64(m.from), int64(m.to-m.from)))
		if err != nil {
			return 0, err
		}
		symbols, err := f.DynamicSymbols()
		for _, s := range symbols {
			if s.Name == "__vdso_clock_gettime" {
				return m.from + s.Value, nil
			}
		}
		return 0, errors.Join(errors.New("the kernel has no __vdso_clock_gettime"), err)
	}
	return 0, errors.New("the kernel maps no functions into processes")
}

// variable returns the address of the variable of this program that holds this value.
func variable(memory io.ReaderAt, maps []mapping, value uint64) (found uint64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	var end uint64 // of the program's mappings so far; variables that begin as zero follow without a name
	for _, m := range maps {
		if m.name != self && (m.name != "" || m.from != end) {
			continue
		}
		end = m.to
		if !strings.HasPrefix(m.rights, "rw") {
			continue
		}
		data := make([]byte, m.to-m.from)
		if _, err := memory.ReadAt(data, int64(m.from)); err != nil {
			return 0, err
		}
		for i := 0; ; i += 8 {
			n := bytes.Index(data[i:], binary.NativeEndian.AppendUint64(nil, value))
			if n < 0 {
				break
			}
			if i += n; i%8 != 0 || found != 0 {
				return 0, errors.New("the address of the kernel's function is in several places")
			}
			found = m.from + uint64(i)
		}
	}
	if found == 0 {
		return 0, errors.New("no variable has the address of the kernel's function")
	}
	return found, nil
}
