// Package deploy measures the locks behind a URL: a quorum, a server, or what any registered
// driver opens.
//
//	open ──> grant ──> rounds ──> ladder ──> remove ──> Report
//
// It uses keys under a prefix of its own, which it declares to be new where servers have a restart
// guard, and which it removes from the servers at the end.
package deploy
