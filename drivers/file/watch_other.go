//go:build !linux

package file

// watcher has nothing to do: there is no Watch here, and who waits polls.
type watcher struct{}

func (*watcher) close() {}
