#!/usr/bin/env bash
# redlocktest/fuzz.bash [TIME [FLAG...]] fuzzes each Fuzz function of each module for TIME (1m),
# one after the other. Flags go to go test. Inputs that fail are in testdata/fuzz beside their
# test. It needs bash 3.2.
set -u -o pipefail
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
time=${1:-1m} failed=""
[ $# = 0 ] || shift
while read -r folder name; do
	printf '\n== %s %s\n' "$folder" "$name"
	# To minimize each input would take most of the time: calls of servers are slow.
	(cd "$folder" && go test -run='^$' -fuzz="^$name\$" -fuzztime="$time" -fuzzminimizetime=1x ${@+"$@"} .) </dev/null ||
		failed="$failed $folder:$name"
done < <(grep -r --include='*_test.go' '^func Fuzz' . | sed -E 's,/[^/]*:func (Fuzz[A-Za-z0-9]*).*, \1,' | sort)
printf '\n== result\n%s\n' "${failed:+FAILED:}${failed:-ok}"
[ -z "$failed" ]
