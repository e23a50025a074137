// Package mydriver has the driver of the page "Test your driver in twenty lines" in the
// documentation of package redlocktest, so that the page is a test that runs. It was written from
// the contract's documentation alone, over the bare commands of one Redis, and can have mistakes that
// such a driver may have.
package mydriver
