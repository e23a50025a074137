package server

import (
	"os"
	"syscall"
)

// memoryFolder returns a folder in memory with much room, or "", which is the system's
// temporary folder. There the thousand files of a postgres cost a tenth of the time that
// they cost on many a disk. Setting TMPDIR to any folder avoids it.
func memoryFolder() string {
	const folder, room = "/dev/shm", 2 << 30
	var s syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(folder, &s) != nil || s.Bavail*uint64(s.Bsize) < room {
		return ""
	}
	return folder
}
