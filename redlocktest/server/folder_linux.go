package server

import (
	"os"
	"syscall"
)

// memoryFolder returns a folder in memory with much room, or "", which is the system's
// temporary folder. In memory the thousand files of a postgres, and each fsync of an
// append-only file, cost a tenth of the time that they cost on many a disk. Setting TMPDIR to
// any folder avoids it.
func memoryFolder() string {
	const folder, room = "/dev/shm", 2 << 30
	var s syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(folder, &s) != nil || s.Bavail*uint64(s.Bsize) < room {
		return ""
	}
	return folder
}
