package redlocktest

var sqlBugs []bug
