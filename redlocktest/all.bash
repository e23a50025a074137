#!/usr/bin/env bash
# The one test command, for people and for CI: `redlocktest/all.bash --help`. It needs
# bash 3.2, since macOS has no newer one.
set -u -o pipefail
gotestsum=gotest.tools/gotestsum@v1.13.0
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath" # a checkout in another folder compiles nothing anew

usage() {
	cat <<'END'
usage: redlocktest/all.bash [--install] [--help] [FLAG or PACKAGE of go test...]

Checks the format, vets the code for Linux, macOS and Windows, lints it, looks for
known vulnerabilities, tries a release as its users would, and runs the tests of all
modules with the race detector (and what is too slow for it, without), against real
servers if they are installed. The end of the output says what was skipped and why, what
failed, and how many. The exit status is 0 only if everything passed.

Tests that failed, five at most, are run again alone: each ten times (three, if it is
long) with the race detector, and as often without it. If one fails once more, the run
has failed; else the end names it, as FAILED ONCE. Two holders, a token that does not
rise, a leak, a secret, a data race, a panic, or a failure outside of a test fails the
run at once. A package under which Go's own runtime crashed is run again as a whole.

  --install  first install the programs that are missing, with apt (and sudo) or brew.
             No service is started, and no apt source is changed. Without it the tests
             that need these programs are skipped; if CI is set they fail.

It needs about 2 GB in TMPDIR (else /tmp), besides Go's caches.

Flags go to go test: -short, -count=1, -run=NAME, -race=false. Packages, such as
./dlock, are tested instead of all, in the main module.
END
}

say() { printf '%s\n' "$*"; }

# try NAME COMMAND... runs a check. One that fails is named and counted at the end.
failed="" fails=0
try() {
	printf '\n== %s\n' "$1"
	"${@:2}" || { failed="$failed${failed:+, }$1" fails=$((fails + 1)); }
	say "(after $SECONDS s)"
}

# beside NAME COMMAND... starts a check beside others and, but for CI, beside the tests, which often
# wait for time to pass. joined waits for all checks.
names=() pids=()
beside() {
	"${@:2}" >"$scratch/check.${#pids[@]}" 2>&1 &
	pids+=($!) names+=("$1")
	renice -n 10 -p $! >/dev/null 2>&1 # the tests come first
}
joined() {
	local i
	for i in "${!pids[@]}"; do
		wait "${pids[i]}"
		try "${names[i]}" shown $? "$scratch/check.$i"
	done
	names=() pids=()
}
shown() { cat "$2"; return "$1"; }

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

# run_tests FOLDERS FLAG... PACKAGE... makes one report about the tests of several
# modules: gotestsum runs this script again, for go_test.
run_tests() {
	echo 1 >"$scratch/failed" # unless gotestsum says otherwise
	go run "$gotestsum" --format=pkgname-and-test-fails --jsonfile="$scratch/events" \
		--post-run-command="sh -c 'echo \$TESTS_FAILED >$scratch/failed'" \
		--raw-command -- "$BASH" redlocktest/all.bash --go-test "$@" && return
	printf '\n== again, alone\n'
	AGAIN_SKIP=$(skipped ${flags[@]+"${flags[@]}"}) go run ./redlocktest/internal/again "$scratch/events" ${flags[@]+"${flags[@]}"} | tee "$scratch/alone" || return
	echo 0 >"$scratch/failed"
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
go_module() { cd "$1" && tested $test -p=1 "${@:2}" >"$(mktemp "$scratch/nested.XXXXXX")"; }

# go_test MODULES FLAG... PACKAGE...: beside the tests of the main module run those of the nested
# ones, three at a time (in an order in which the drivers, which take longest, are not the last),
# and without the race detector what only computes, in one goroutine or in virtual time, what makes
# thousands of calls in a row, and what measures. Several packages run at once, since they wait more
# than they compute.
test="go test -json -timeout=20m"
computes='^TestEveryPartIsMissed$|^TestEveryRuleIsNeeded$|^TestNoPairOfClientsOverlaps$|^TestPlantedBugs$|^TestStressFindsPlantedBugs$'
computes=$computes'|^TestTheSimulatedNodeIsTheRealOne$|^TestTheSimulatedQueueIsTheRealOne$|^TestABlackHoleCostsABoundedNumberOfGoroutines$'
computes=$computes'|^TestConformance$/^[1-4]$|^TestConformanceOnRealServers$/^5$|^TestANodeWithAFullQueueIsAway$'
computes=$computes'|^TestFortyProcessesCountToTwoThousand$|^TestTokensRiseThroughCrashesPowerLossesAndABackwardClock$'
computes=$computes'|^TestAQuickRunWritesAWholeReport$|^TestPostgresAndOtherDriversAreMeasured$|^TestANodeThatHangsIsNamed$|^TestANodeThatIsFarAwayIsNamed$'
# skipped FLAG... prints which tests do not run with the race detector.
skipped() {
	case " $* " in
	*" -run"* | *" -short"*) ;;
	*" -race "*) say "$computes" && return ;;
	esac
	say '^$'
}
go_test() {
	local folders=$1 status=0 skip other others
	shift
	[ "$folders" != . ] || { tested $test -p=4 "$@"; return; }
	skip=$(skipped "$@")
	printf '%s\n' $folders | grep -vx '\.' | sort -t/ -k2,2r |
		xargs -P 3 -I{} "$BASH" redlocktest/all.bash --go-module {} -skip="$skip" "$@" &
	others=$!
	if [ "$skip" != '^$' ]; then
		(
			status=0
			tested $test -run="$skip|^TestSimulation$|^TestSchedules$|^TestEveryOrderOfEvents$" ./drivers/redlock ./redlocktest ./drivers/file || status=1
			cd benchmark && tested $test -run="$skip" ./internal/... || status=1
			exit $status
		) >"$scratch/computed" &
		others="$others $!"
	fi
	tested $test -p=3 -skip="$skip" "${@:1:$#-1}" ./drivers/redlock ./... || status=1 # the one that takes longest begins first
	for other in $others; do
		wait "$other" || status=1
	done
	cat "$scratch"/{nested.*,computed} 2>/dev/null # not before: lines would be mixed
	return $status
}

count() { grep "\"Action\":\"$1\".*\"Test\":" "$scratch/events" 2>/dev/null | wc -l | tr -d ' '; }

main() {
	local install="" race=-race where=. checks flags=() packages=() arg
	for arg in "$@"; do
		case $arg in
		--install) install=yes ;;
		--help | -h) usage; return 0 ;;
		--*) say "all.bash: unknown option $arg" >&2; usage >&2; return 2 ;;
		-race=false) race="" ;;
		-*) flags+=("$arg") ;;
		*) packages+=("$arg") ;;
		esac
	done
	command -v go >/dev/null || { say "all.bash: needs Go, see https://go.dev/dl" >&2; return 1; }
	export scratch # for go_test
	scratch=$(mktemp -d "${TMPDIR:-/tmp}/redlock-all.XXXXXX") || return 1
	trap 'permit_services; rm -rf "$scratch"' EXIT
	lack=$(missing program)
	[ -z "$lack" ] || [ -z "$install" ] || try "install $lack" install
	try "programs" no_program_is_missing
	case $lack in *cc*) race="" ;; esac
	[ -z "$race" ] || flags+=("$race")
	if [ ${#packages[@]} = 0 ]; then
		where=$(modules) packages=(./...)
		try "gofmt" format
		beside "vet" vet
		beside "lint" lint
		beside "vulnerabilities" in_modules vulnerabilities
		beside "release" redlocktest/release.bash
		[ -z "${CI:-}" ] || joined # what they compile starves tests on a machine that has no cache yet
	fi
	try "test" run_tests "$where" ${flags[@]+"${flags[@]}"} "${packages[@]}"
	[ ${#pids[@]} = 0 ] || joined
	checks=$fails
	case ", $failed, " in *", test, "*) checks=$((fails - 1)) ;; esac
	printf '\n== result\n%s\n' "${failed:+FAILED: }${failed:-ok}"
	[ ! -s "$scratch/alone" ] || [ -n "$failed" ] || grep '^FAILED ONCE' "$scratch/alone"
	say "$(count pass) passed, $((checks + $(cat "$scratch/failed"))) failed, $(count skip) skipped"
	[ -z "$failed" ]
}

# started prints the processes that this script started, each before those that it started itself.
started() {
	ps -A -o pid=,ppid= | awk -v top=$$ '
		function below(of, p) { for (p in parent) if (parent[p] == of) { print p; below(p) } }
		{ parent[$1] = $2 } END { below(top) }'
}
trap 'kill $(started) 2>/dev/null; exit 130' INT # what runs in the background does not hear ctrl-C
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. redlocktest/install.bash
. redlocktest/checks.bash
case ${1:-} in
--go-test) go_test "${@:2}" ;;
--go-module) go_module "${@:2}" ;;
*) main "$@" ;;
esac
