package cli

import (
	"errors"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/redlock-go/redlock/driver/dsn"
)

const (
	envURL     = "DLOCK_URL"
	envURLFile = "DLOCK_URL_FILE"
	defaultURL = "file:"
)

// chooseURL returns the backend's URL: from the flag, else from the environment, else from the
// file that the environment names, else the default. A variable that is set and empty is an
// error: it was forgotten, and a lock on another backend would exclude nobody.
func chooseURL(flag string, given bool) (string, error) {
	if given {
		if flag == "" {
			return "", failf(exitUsage, "--url is empty: give a URL, or leave it out")
		}
		return flag, nil
	}
	const empty = "%s is set and empty: give it a value, or unset it"
	if u, set := os.LookupEnv(envURL); set {
		if u == "" {
			return "", failf(exitUsage, empty, envURL)
		}
		return u, nil
	}
	if path, set := os.LookupEnv(envURLFile); set {
		if path == "" {
			return "", failf(exitUsage, empty, envURLFile)
		}
		return readURL(path)
	}
	if _, nested := os.LookupEnv(envKeys); nested {
		return "", failf(exitUsage, "this runs inside dlock run (%s is set), which does not pass its URL on: give --url, %s or %s", envKeys, envURL, envURLFile)
	}
	return defaultURL, nil
}

// ChooseURL returns the URL of the locks for another program, by the rules of this command: the
// value of the program's flag --url (or -url) where it was given, else DLOCK_URL, else the line
// in the file that DLOCK_URL_FILE names. Where none is set, ok is false and there is no URL.
// args is the program's command line, without its name. Errors are one line, quote no URL, and
// say what to do. A password in args is an error.
func ChooseURL(args []string, flag string, given bool) (url string, ok bool, err error) {
	if err := checkArgs(args); err != nil {
		return "", false, err
	}
	_, inEnv := os.LookupEnv(envURL)
	_, inFile := os.LookupEnv(envURLFile)
	if !given && !inEnv && !inFile {
		return "", false, nil
	}
	url, err = chooseURL(flag, given)
	return url, err == nil, err
}

// urlLimit bounds the file with the URL, in bytes.
const urlLimit = 64 << 10

// readURL reads the URL from a file, which others must not write, nor read if it has a password.
func readURL(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", failf(exitUsage, "%s cannot be read: %v", envURLFile, err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	b, err := io.ReadAll(io.LimitReader(f, urlLimit+1))
	fi, statErr := f.Stat()
	if err = errors.Join(err, statErr); err != nil {
		return "", failf(exitUsage, "%s cannot be read: %v", envURLFile, err)
	}
	u := strings.TrimSpace(string(b))
	mode := fi.Mode()
	others := mode.IsRegular() && runtime.GOOS != "windows"
	switch {
	case u == "", len(b) > urlLimit, strings.ContainsAny(u, "\r\n"):
		return "", failf(exitUsage, "the file that %s names must hold one line, a URL", envURLFile)
	case others && mode&0o002 != 0:
		return "", failf(exitUsage, "every user can write the file that %s names, and move the locks elsewhere: chmod o-w it", envURLFile)
	case others && mode&0o004 != 0 && dsn.HasPassword(u):
		return "", failf(exitUsage, "every user can read the file that %s names, with the password in it: chmod o-r it", envURLFile)
	}
	return u, nil
}

// checkArgs refuses a password on the command line, where every user of the machine can read
// it. Arguments after "--" belong to the command and are not checked.
func checkArgs(args []string) error {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name := strings.TrimLeft(arg, "-")
		value, isURL := strings.CutPrefix(name, "url=")
		isURL = isURL && name != arg || i > 0 && (args[i-1] == "--url" || args[i-1] == "-url")
		if (isURL || strings.Contains(arg, "://")) && dsn.HasPassword(value) {
			return failf(exitUsage, "a password on the command line can be read by every user of this machine: put the URL into %s, or into a file and its path into %s", envURL, envURLFile)
		}
	}
	return nil
}
