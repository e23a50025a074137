package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
)

// MissingError says that a server program is not installed.
type MissingError struct {
	Program string
	Package string // of Debian and Ubuntu; empty: unknown
	_       struct{}
}

// Error names the program, its package and the command that installs it.
func (e *MissingError) Error() string {
	if e.Package == "" {
		return fmt.Sprintf("needs the program %s, which is not in PATH", e.Program)
	}
	return fmt.Sprintf("needs %s (package %s): run redlocktest/all.bash --install", e.Program, e.Package)
}

// packages are the packages of the programs, on Debian and Ubuntu.
func (k Kind) pkg() string {
	switch k {
	case KindPostgres:
		return "postgresql, 14 or newer"
	case KindMariaDB:
		return "mariadb-server-core"
	}
	if k == KindEtcd {
		return "etcd-server"
	}
	return string(k) // of redis-server, valkey-server, pgbouncer and zookeeper
}

// find returns the path of a server's program.
func find(k Kind) (string, error) {
	if k == KindZooKeeper {
		java, _, err := findJava()
		return java, err
	}
	if k == KindNATS {
		return findNATS()
	}
	if k == KindConsul {
		return findConsul()
	}
	for _, path := range places(string(k)) {
		if k != KindPostgres || majorVersion(path) >= 14 {
			return path, nil
		}
	}
	return "", &MissingError{Program: string(k), Package: k.pkg()}
}

// places returns where a program may be: in PATH, or in the folders outside it that Debian and
// Homebrew use. install.bash searches the same places.
func places(program string) []string {
	var found []string
	if path, err := exec.LookPath(program); err == nil {
		found = append(found, path)
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/opt/*/bin",
		"/usr/local/opt/*/bin", "/home/linuxbrew/.linuxbrew/opt/*/bin",
		"/usr/share/zookeeper/bin", "/opt/homebrew/opt/*/libexec/bin", "/usr/local/opt/*/libexec/bin",
	} {
		matches, err := filepath.Glob(filepath.Join(pattern, program))
		if err != nil {
			continue
		}
		// The newest version is the last by name.
		for i := len(matches) - 1; i >= 0; i-- {
			if info, err := os.Stat(matches[i]); err == nil && info.Mode()&0o111 != 0 {
				found = append(found, matches[i])
			}
		}
	}
	return found
}

// placesOrCache also returns where install.bash builds a program that Debian does not have.
func placesOrCache(k Kind, version string) []string {
	found := places(string(k))
	if cache, err := os.UserCacheDir(); err == nil {
		found = append(found, filepath.Join(cache, "redlock", string(k)+"-"+version))
	}
	return found
}

var firstNumber = regexp.MustCompile(`\d+`)

// majorVersion returns the major version of a program, 0 if it is unknown.
func majorVersion(path string) int {
	major, err := strconv.Atoi(firstNumber.FindString(version(path)))
	if err != nil {
		return 0
	}
	return major
}

var versions sync.Map // by the program's path

// version returns a program's output for --version, "" if it fails. It runs each program only
// once per process, because tests start a hundred servers.
func version(path string) string {
	known, ok := versions.Load(path)
	if !ok {
		out, err := output(path, "--version")
		if err != nil {
			return ""
		}
		known, _ = versions.LoadOrStore(path, out)
	}
	return known.(string)
}

// output runs a program to its end and returns its output.
func output(path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).Output()
	return string(out), err
}
