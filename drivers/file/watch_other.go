//go:build !linux

package file

// watcher does nothing: there is no Watch here, and waiters poll.
type watcher struct{}

func (*watcher) close() {}
