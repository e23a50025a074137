//go:build !linux

package file

// watcher has nothing to do: there is no Watch here, and waiters poll.
type watcher struct{}

func (*watcher) close() {}
