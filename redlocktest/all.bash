#!/usr/bin/env bash
# The one test command, for people and for CI: `redlocktest/all.bash --help`.
# Kept to what bash 3.2 understands, since macOS has no newer one.
set -u -o pipefail
gotestsum=gotest.tools/gotestsum@v1.13.0
golangci=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.6.0

usage() {
	cat <<'END'
usage: redlocktest/all.bash [--install] [--latest] [--help] [FLAG or PACKAGE of go test...]

Checks the format, vets the code for Linux, macOS and Windows, lints it, looks for
known vulnerabilities, tries a release as its users would, and runs the tests of all
modules with the race detector (and what is too slow for it, without), against real
servers if they are installed. The end of the output says what was skipped and why, what
failed, and how many. The exit status is 0 only if everything passed.

If up to three tests failed, and say nothing but that an answer did not come in time, they
are run once more with nothing beside them, and the end says so. What gave a wrong answer
never is: two holders, a leak, another error, a data race.

  --install  first install the programs that are missing, with apt (and sudo) or brew.
             No service is started, and no apt source is changed. Without it the tests
             that need these programs are skipped; if CI is set they fail.
  --latest   instead: run the tests of the main module with every dependency at its
             latest version, by a go.mod in a temporary folder.

Flags go to go test: -short, -count=1, -run=NAME, -race=false. Packages, such as
./dlock, are tested instead of all, in the main module.
END
}

# programs: what the tests need, the packages of Debian, the formula of Homebrew. A
# driver of another server adds a line.
programs() {
	cat <<'END'
redis-server  redis-server   redis
valkey-server valkey-server  valkey
postgres      postgresql     postgresql@17
pgbouncer     pgbouncer      pgbouncer
etcd          etcd-server    etcd
mariadbd      mariadb-server-core mariadb
zkServer.sh   zookeeper      zookeeper
cc            gcc,libc6-dev  gcc
END
}

say() { printf '%s\n' "$*"; }

# try NAME COMMAND... runs a check. One that fails is named and counted at the end.
failed="" fails=0
try() {
	local name=$1 start=$SECONDS
	shift
	printf '\n== %s\n' "$name"
	"$@" || { failed="$failed${failed:+, }$name" fails=$((fails + 1)); }
	say "($((SECONDS - start)) s)"
}

# beside NAME COMMAND... starts a check beside others, and joined tries them: each waits
# for its end, and prints what it wrote.
names=() pids=()
beside() {
	local name=$1
	shift
	"$@" >"$scratch/check.${#pids[@]}" 2>&1 &
	pids+=($!) names+=("$name")
}
joined() {
	local i
	for i in "${!pids[@]}"; do
		try "${names[i]}" outcome "$i"
	done
}
outcome() {
	local status=0
	wait "${pids[$1]}" || status=1
	cat "$scratch/check.$1"
	return $status
}

# modules prints the folder of every module.
modules() {
	find . -name go.mod ! -path '*/.*/*' ! -path '*/testdata/*' | sort | sed 's,/go\.mod$,,'
}

# in_modules COMMAND... runs it in each of them.
in_modules() {
	local module status=0
	for module in $(modules); do
		(cd "$module" && "$@") || { say "(in $module)"; status=1; }
	done
	return $status
}

# have looks in PATH and where Debian and Homebrew put what they leave out of it, as
# redlocktest/server does.
have() {
	local path
	for path in "$(command -v "$1")" /usr/lib/postgresql/*/bin/"$1" /usr/sbin/"$1" /usr/local/sbin/"$1" \
		/opt/homebrew/opt/*/bin/"$1" /usr/local/opt/*/bin/"$1" /home/linuxbrew/.linuxbrew/opt/*/bin/"$1" \
		/usr/share/zookeeper/bin/"$1" /opt/homebrew/opt/*/libexec/bin/"$1" /usr/local/opt/*/libexec/bin/"$1"; do
		[ -x "$path" ] && return 0
	done
	return 1
}

# missing prints those that are not there: the program, or what is in apt or brew.
missing() {
	local program apt brew
	programs | while read -r program apt brew; do
		have "$program" || eval "say \$$1"
	done | tr ',\n' '  '
}

as_root() { $([ "$(id -u)" = 0 ] || say sudo) env DEBIAN_FRONTEND=noninteractive "$@"; }

# install_apt PACKAGE... starts no service. What the release lacks (valkey-server in
# Debian 12) comes from its backports, of which only these commands know.
policy="" # the file that keeps packages from starting services, while it is there
install_apt() {
	local codename archive sources="" package
	as_root apt-get -qq -o=Acquire::Retries=3 update || say "apt-get update failed; going on with what apt knows"
	if ! apt-cache show "$@" >/dev/null 2>&1; then
		codename=$(. /etc/os-release && say "${VERSION_CODENAME:-}")
		archive=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$codename //p" | head -n 1)
		cat /etc/apt/sources.list >"$scratch/sources.list" 2>/dev/null
		say "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $codename-backports main" >>"$scratch/sources.list"
		chmod 755 "$scratch" # for apt's own user
		sources=-o=Dir::Etc::sourcelist=$scratch/sources.list
		as_root apt-get -qq $sources -o=Acquire::Retries=3 update
	fi
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		policy=/usr/sbin/policy-rc.d
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null && as_root chmod 755 "$policy"
	fi
	as_root apt-get -qq $sources -o=Acquire::Retries=3 -o=DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
	[ ! -d /run/systemd/system ] || for package in "$@"; do
		as_root systemctl -q disable "$package" 2>/dev/null # gcc is no service
	done
}

# install_brew: only one of redis and valkey can be linked; the tests find the other
# where Homebrew keeps it.
install_brew() {
	brew unlink redis valkey >/dev/null 2>&1
	brew install "$@"
	brew unlink valkey >/dev/null 2>&1
	brew link redis >/dev/null 2>&1
}

install() {
	if command -v apt-get >/dev/null; then
		install_apt $(missing apt)
	elif command -v brew >/dev/null; then
		install_brew $(missing brew)
	else
		say "knows apt and brew only"
	fi
	[ -z "$(missing program)" ]
}

no_program_is_missing() {
	[ -z "$lack" ] && return
	say "missing: ${lack% }; to install: redlocktest/all.bash --install"
	case $lack in *cc*) say "without a C compiler there is no race detector" ;; esac
	[ -z "${CI:-}" ]
}

format() {
	local bad
	bad=$(gofmt -l .) && [ -z "$bad" ] || { say "run gofmt -w on: $bad"; return 1; }
}

vet() {
	local goos
	in_modules go vet ./... || return
	for goos in linux darwin windows; do
		[ "$goos" = "$(go env GOHOSTOS)" ] || GOOS=$goos CGO_ENABLED=0 go vet ./... || { say "(for $goos)"; return 1; }
	done
}

# lint has a cache for each folder: what it found in another checkout has other paths.
lint() {
	GOLANGCI_LINT_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/redlock-lint/$(pwd | cksum | tr -d ' ')" \
		in_modules go run "$golangci" run ./...
}

# vulnerabilities fails for those of dependencies. Those of Go itself need a newer Go,
# and without a network nobody can look; both fail in GitHub's CI alone.
vulnerabilities() {
	[ ! -e "$scratch/blind" ] || return 0
	go run "$govulncheck" ./... >"$scratch/out" 2>&1 && return
	cat "$scratch/out"
	grep -q '^  Module: ' "$scratch/out" && return 1
	grep -q '^  Standard library' "$scratch/out" || { touch "$scratch/blind"; say "COULD NOT LOOK for vulnerabilities: is their database out of reach?"; }
	[ -z "${GITHUB_ACTIONS:-}" ]
}

# run_tests FOLDERS FLAG... PACKAGE... makes one report about the tests of several
# modules: gotestsum runs this script again, for go_test.
run_tests() {
	echo 1 >"$scratch/failed" # unless gotestsum says otherwise
	go run "$gotestsum" --format=pkgname-and-test-fails --jsonfile="$scratch/events" \
		--post-run-command="sh -c 'echo \$TESTS_FAILED >$scratch/failed'" \
		--raw-command -- "$BASH" redlocktest/all.bash --go-test "$@" && return
	printf '\n== again, alone\n'
	go run ./redlocktest/internal/again "$scratch/events" ${flags[@]+"${flags[@]}"} | tee "$scratch/alone" || return
	echo 0 >"$scratch/failed"
}

# go_test: the nested modules' tests run beside those of the main module, and after them,
# at low priority, what computes for minutes under the race detector and skips itself or
# much of itself there. Four packages at once in all, since they wait more than they compute.
go_test() {
	local folders=$1 status=0
	shift
	if [ "$folders" = . ]; then
		go test -json -p=4 -timeout=20m "$@"
		return
	fi
	nested "$@" >"$scratch/nested" &
	go test -json -p=3 -timeout=20m "${@:1:$#-1}" ./drivers/redlock ./... || status=1 # the one that takes longest begins first
	wait $! || status=1
	cat "$scratch/nested" # not before: lines would be mixed
	return $status
}

nested() {
	local folder status=0
	for folder in $folders; do
		[ "$folder" = . ] || (cd "$folder" && go test -json -p=1 -timeout=20m "$@") || status=1
	done
	case " $* " in
	*" -run"* | *" -short"*) return $status ;;
	*" -race "*) ;;
	*) return $status ;;
	esac
	nice go test -json -run='^(TestEveryPartIsMissed|TestSimulation|TestEveryOrderOfEvents)$' ./drivers/redlock || status=1
	go test -json -run='^TestConformanceOnRealServers$/^[14]$' ./drivers/redlock || status=1
	return $status
}

# upgrade makes a go.mod with every dependency at its latest version.
upgrade() {
	cp go.mod go.sum "$scratch" && go get -modfile="$scratch/go.mod" -u -t ./...
}

count() { grep "\"Action\":\"$1\".*\"Test\":" "$scratch/events" 2>/dev/null | wc -l | tr -d ' '; }

main() {
	local install="" latest="" race=-race where=. checks flags packages arg
	flags=() packages=()
	for arg in "$@"; do
		case $arg in
		--install) install=yes ;;
		--latest) latest=yes ;;
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
	trap '[ -z "$policy" ] || as_root rm -f "$policy"; rm -rf "$scratch"' EXIT
	lack=$(missing program)
	[ -z "$lack" ] || [ -z "$install" ] || try "install $lack" install
	lack=$(missing program)
	try "programs" no_program_is_missing
	case $lack in *cc*) race="" ;; esac
	[ -z "$race" ] || flags+=("$race")
	if [ -n "$latest" ]; then
		try "upgrade all dependencies, aside" upgrade
		flags+=("-modfile=$scratch/go.mod")
	elif [ ${#packages[@]} = 0 ]; then
		where=$(modules)
		try "gofmt" format
		beside "go vet" vet # what it compiles the others need
		beside "golangci-lint" lint
		beside "govulncheck" in_modules vulnerabilities
		beside "release" redlocktest/release.bash
		joined
	fi
	checks=$fails
	[ ${#packages[@]} -gt 0 ] || packages=(./...)
	try "go test" run_tests "$where" ${flags[@]+"${flags[@]}"} "${packages[@]}"
	printf '\n== result\n%s\n' "${failed:+FAILED: }${failed:-ok}"
	[ ! -s "$scratch/alone" ] || [ -n "$failed" ] || grep ' TESTS RAN OUT OF TIME ' "$scratch/alone"
	say "$(count pass) passed, $((checks + $(cat "$scratch/failed"))) failed, $(count skip) skipped"
	[ -z "$failed" ]
}

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
case ${1:-} in
--go-test) shift; go_test "$@" ;;
*) main "$@" ;;
esac
