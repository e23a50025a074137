#!/usr/bin/env bash
# The one test command, for people and for CI: `redlocktest/all.bash --help`. It needs
# bash 3.2, since macOS has no newer one.
set -u -o pipefail
gotestsum=gotest.tools/gotestsum@v1.13.0
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath" # a checkout in another folder compiles nothing anew

usage() {
	cat <<'END'
usage: redlocktest/all.bash [--install] [--static | --sample | --deep] [--help]
                            [FLAG or PACKAGE of go test...]

Runs the tests of all modules once (but for the benchmark and the record of other
libraries), against real servers if they are installed. The end of the output says what
was skipped and why, what failed, how many, and what it cost. The exit status is 0 only
if everything passed; nothing is run again.

  --install  first install the programs that are missing, with apt (and sudo) or brew.
             No service is started, and no apt source is changed. Without it the tests
             that need these programs are skipped; if CI is set they fail.
  --static   instead of the tests: the format, vet for the other systems of Linux, macOS and
             Windows, lint, and the API beside the last release.
  --sample   instead of the tests: short tests with the race detector where goroutines meet,
             and three minutes of the deep depth, chosen by the hash of the commit.
  --deep     the static checks, known vulnerabilities, a trial of a release as its users would
             make it, all tests with the race detector and with what searches, repeats or
             measures at length, mutants of the scripts, and fuzzing. It takes hours.

It needs about 2 GB in TMPDIR (else /tmp), besides Go's caches.

Flags go to go test: -short, -count=1, -run=NAME, -race. Packages, such as ./dlock, are
tested instead of all, in the main module.
END
}

say() { printf '%s\n' "$*"; }

# try NAME COMMAND... runs a check. One that fails is named and counted at the end.
failed="" fails=0 tried=0
try() {
	printf '\n== %s\n' "$1"
	tried=$((tried + 1))
	"${@:2}" || { failed="$failed${failed:+, }$1" fails=$((fails + 1)); }
	say "(after $SECONDS s)"
}

# modules prints the folder of every module, and in_modules COMMAND... runs it in each.
modules() { find . -name go.mod ! -path '*/.*/*' ! -path '*/testdata/*' | sort | sed 's,/go\.mod$,,'; }
in_modules() {
	local module status=0
	for module in $(modules); do
		(cd "$module" && "$@") || { say "(in $module)"; status=1; }
	done
	return $status
}

no_program_is_missing() {
	lack=$(missing program)
	[ -z "$lack" ] && return
	say "missing: ${lack% }; to install: redlocktest/all.bash --install"
	case $lack in *cc*) say "without a C compiler there is no race detector" ;; esac
	[ -z "${CI:-}" ]
}

# tests FOLDERS FLAG... PACKAGE... makes one report about the tests of several modules:
# gotestsum runs this script again, for go_test. It counts each test that failed, and one for each
# package that failed without one: a build, a TestMain, a package that ran out of time.
tests() {
	echo 1 >"$scratch/failed" # unless gotestsum says otherwise
	go run "$gotestsum" --format=pkgname-and-test-fails --hide-summary=skipped --jsonfile="$scratch/events" \
		--post-run-command="sh -c 'echo \$TESTS_FAILED >$scratch/failed'" \
		--raw-command -- "$BASH" redlocktest/all.bash --go-test "$@" && return
	[ "$(cat "$scratch/failed")" != 0 ] || echo 1 >"$scratch/failed"
	return 1
}

# tested COMMAND... runs go test. An event tells if it failed before the first package did.
tested() {
	local out
	out=$(mktemp "$scratch/tested.XXXXXX")
	"$@" | tee "$out" && return
	grep -q '"Action":"fail"' "$out" || say '{"Action":"fail","Package":"go test"}'
	return 1
}

# go_module FOLDER FLAG... PACKAGE... runs the tests of a nested module.
go_module() { cd "$1" && tested $test -exec="$measured" -p=1 "${@:2}" >"$(mktemp "$scratch/nested.XXXXXX")"; }

# go_test FOLDERS FLAG... PACKAGE...: beside the tests of the main module run those of the nested
# ones, four at a time (in an order in which the drivers, which take longest, are not the last).
# Several packages run at once, since they wait more than they compute; the one that takes longest
# begins first.
test="go test -json -vet=off -timeout=${DEEP_TIMEOUT:-20m}" # lint has the rules of vet
measured="\"$BASH\" \"$PWD/${BASH_SOURCE[0]}\" --measured"
case ${BASH_SOURCE[0]} in /*) measured="\"$BASH\" \"${BASH_SOURCE[0]}\" --measured" ;; esac
go_test() {
	local folders=$1 status=0 others
	shift
	[ "$folders" != . ] || { tested $test -exec="$measured" -p=4 "$@"; return; }
	printf '%s\n' $folders | grep -vx '\.' | sort -t/ -k2,2r |
		xargs -P 4 -I{} "$BASH" redlocktest/all.bash --go-module {} "$@" &
	others=$!
	tested $test -exec="$measured" -p=3 "${@:1:$#-1}" ./drivers/redlock ./... || status=1
	wait "$others" || status=1
	cat "$scratch"/nested.* 2>/dev/null # not before: lines would be mixed
	return $status
}

# measured PROGRAM ARG... runs a test binary and notes the processor time of it and of the servers
# that it stopped, in seconds.
measured() {
	local status TIMEFORMAT='%U %S'
	{
		time "$@" 2>&3
		status=$?
	} 3>&2 2>"$scratch/cpu.$$"
	say "$(tail -n 1 "$scratch/cpu.$$") ${PWD#"$root"}" >>"$scratch/cpu"
	rm -f "$scratch/cpu.$$"
	return $status
}

# nothing_left fails for what tests left in TMPDIR, but for the database from which all PostgreSQL
# servers of a run are copied.
nothing_left() {
	local left
	left=$(ls -A "$scratch/t" | grep -v '^redlock-postgres-') || return 0
	say "left: $left"
	return 1
}

count() { grep "\"Action\":\"$1\".*\"Test\":" "$scratch/events" 2>/dev/null | wc -l | tr -d ' '; }

# skipped prints for each reason which test was skipped, and how many others; of those that the deep
# depth alone runs there is only the number.
skipped() {
	awk '
		{ name = ""; if (match($0, /"Package":"[^"]*"/)) name = substr($0, RSTART + 11, RLENGTH - 12) }
		match($0, /"Test":"[^"]*"/) { name = name " " substr($0, RSTART + 8, RLENGTH - 9) } 
		/"Action":"output"/ && /"Test":/ && match($0, /"Output":".*"/) {
			line = substr($0, RSTART + 10, RLENGTH - 11)
			if (line !~ /^ *(===|---|(\\n)?$)/) said[name] = line
		}
		/"Action":"skip"/ && /"Test":/ {
			if (said[name] ~ /belongs to the deep depth/) { deep++; next }
			why = said[name]; sub(/\\n$/, "", why); sub(/^ *[a-z_]*\.go:[0-9]*: /, "", why)
			if (!times[why]++) first[why] = name
		}
		END {
			for (why in times) print "skipped: " first[why] (times[why] > 1 ? " and " times[why] - 1 " others" : "") ": " why
			if (deep) print deep " tests belong to the deep depth (--deep)"
		}' "$scratch/events" 2>/dev/null
}

# cost prints the wall and processor time of everything so far, and the dearest packages and tests.
# What is no test is compiling, linking, installing and the checks.
cost() {
	local all tests
	times >"$scratch/times" # in a subshell it would know nothing; its last line has the children
	all=$(awk '{ split($1, u, /[ms]/); split($2, s, /[ms]/); t += u[1] * 60 + u[2] + s[1] * 60 + s[2] } END { printf "%.0f", t }' "$scratch/times")
	tests=$(awk '{ t += $1 + $2 } END { printf "%.0f", t }' "$scratch/cpu" 2>/dev/null)
	say "wall: $SECONDS s; processor time: $all s, of which tests and their servers ${tests:-0} s, and compiling, installing and checks $((all - ${tests:-0})) s"
	[ -s "$scratch/cpu" ] || return 0
	say "the ten dearest packages (s of processor time):"
	awk '{ print $1 + $2, $3 }' "$scratch/cpu" | sort -nr | head -n 10 | sed 's/^/  /'
	say "the ten longest tests (s of wall time):"
	grep -E '"Action":"(pass|fail)".*"Test":"[^"/]*"' "$scratch/events" |
		sed -E 's/.*"Package":"([^"]*)","Test":"([^"]*)","Elapsed":([0-9.e-]*).*/\3 \2 \1/' | sort -nr | head -n 10 | sed 's/^/  /'
}

main() {
	local install="" depth=tests where=. flags=() packages=() arg passed
	for arg in "$@"; do
		case $arg in
		--install) install=yes ;;
		--static | --sample | --deep) depth=$arg ;;
		--help | -h) usage; return 0 ;;
		--*) say "all.bash: unknown option $arg" >&2; usage >&2; return 2 ;;
		-*) flags+=("$arg") ;;
		*) packages+=("$arg") ;;
		esac
	done
	command -v go >/dev/null || { say "all.bash: needs Go, see https://go.dev/dl" >&2; return 1; }
	export scratch root=$PWD # for go_test
	scratch=$(mktemp -d "${TMPDIR:-/tmp}/redlock-all.XXXXXX") || return 1
	trap 'permit_services; rm -rf "$scratch"' EXIT
	trap 'exit 129' HUP
	trap 'exit 143' TERM
	lack=$(missing program)
	[ -z "$lack" ] || [ -z "$install" ] || try "install $lack" install
	[ "$depth" = --static ] || try "programs" no_program_is_missing
	if [ ${#packages[@]} = 0 ]; then
		packages=(./...)
		where=$(modules)
		[ "$depth" = --deep ] || where=$(say "$where" | grep -vx ./benchmark) # it measures
	fi
	case $depth in
	--static | --deep) run_static ;;
	--sample) run_sample ;;
	esac
	if [ "$depth" = --deep ]; then
		try "vulnerabilities" in_modules vulnerabilities
		try "release" redlocktest/release.bash
		export REDLOCK_DEEP=1 DEEP_TIMEOUT=6h
		case $lack in *cc*) ;; *) flags+=(-race) ;; esac
	fi
	echo 0 >"$scratch/failed"
	mkdir "$scratch/t" && chmod 755 "$scratch" && export TMPDIR=$scratch/t # a short name: sockets have 108 bytes
	case $depth in
	tests | --deep) try "test" tests "$where" ${flags[@]+"${flags[@]}"} "${packages[@]}" ;;
	esac
	[ "$depth" != --deep ] || run_deep
	[ -n "$failed" ] || try "temporary files" nothing_left
	case ", $failed, " in *", test, "*) fails=$((fails - 1)) ;; esac
	passed=$(count pass)
	case $depth in --static | --sample) passed=$((tried - fails)) ;; esac
	printf '\n== result\n'
	skipped
	cost
	say "${failed:+FAILED: }${failed:-ok}"
	say "$passed passed, $((fails + $(cat "$scratch/failed"))) failed, $(count skip) skipped"
	[ -z "$failed" ]
}

# started [PID] prints the processes that this script, or PID, started, each before those that it started itself.
started() {
	ps -A -o pid=,ppid= | awk -v top="${1:-$$}" '
		function below(of, p) { for (p in parent) if (parent[p] == of) { print p; below(p) } }
		{ parent[$1] = $2 } END { below(top) }'
}
trap 'kill $(started) 2>/dev/null; exit 130' INT # what runs in the background does not hear ctrl-C
case ${1:-} in --measured) measured "${@:2}"; exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. redlocktest/install.bash
. redlocktest/checks.bash
case ${1:-} in
--go-test) go_test "${@:2}" ;;
--go-module) go_module "${@:2}" ;;
*) main "$@" ;;
esac
