package file

import (
	"strings"
	"syscall"
)

// bootID identifies the time since the machine was started; empty: unknown.
func bootID() string {
	id, err := syscall.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
}

// networkKind names the network file system that has path; empty: no known one.
func networkKind(path string) string {
	var st syscall.Statfs_t
	if syscall.Statfs(path, &st) != nil {
		return ""
	}
	var name strings.Builder
	for _, c := range st.Fstypename {
		if c == 0 {
			break
		}
		name.WriteByte(byte(c))
	}
	switch name.String() {
	case "nfs", "smbfs", "afpfs", "webdav", "ftp", "macfuse", "osxfuse":
		return name.String()
	}
	return ""
}
