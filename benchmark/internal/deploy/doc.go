// Package deploy measures the locks behind a URL: a quorum, a server, or any other backend of a
// registered driver.
//
//	open ──> grant ──> rounds ──> ladder ──> remove ──> Report
//
// It uses keys under a prefix of its own. If the servers have a restart guard, it declares the
// prefix new. At the end it removes these keys from the servers.
package deploy
