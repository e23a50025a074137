package redlocktest

var redisBugs []bug
