#!/usr/bin/env bash
# The one test command, for people and for CI: `redlocktest/all.bash --help`.
#
# Kept to what bash 3.2 understands, since macOS has no newer one.
set -u
set -o pipefail

usage() {
	cat <<'END'
usage: redlocktest/all.bash [--install] [--latest] [--help] [FLAG or PACKAGE of go test...]

Checks the format, vets the code for Linux, macOS and Windows, and runs the tests of
all modules with the race detector, against real servers where they are installed.
Works from any folder. At the end it says how many tests were skipped and why, repeats
what failed tests said, and what failed; the exit status is 0 only if everything passed.

  --install  first install what is missing: redis-server, valkey-server,
             PostgreSQL, PgBouncer and a C compiler, with apt (and sudo, if
             needed) or brew. Nothing is started as a service. Without it the
             command is printed that brings what is missing, and those tests are
             skipped; where the environment variable CI is set they fail.
  --latest   instead: run the tests of the main module with every dependency at its
             latest version, by a go.mod in a temporary folder. The repository is
             not touched.
  --help     print this.

Flags go to go test: -short, -count=1, -run=NAME, -race=false. Packages, such as
./dlock, are tested instead of all, in the main module.
END
}

say() { printf '%s\n' "$*"; }
warn() { printf 'all.bash: %s\n' "$*" >&2; }

# --- what the tests need ---------------------------------------------------

# find_binary prints where a server binary is: in PATH, or where Debian and
# Homebrew put what they leave out of it. redlocktest/server looks in the same places.
find_binary() {
	local path
	path=$(command -v "$1" 2>/dev/null) && [ -n "$path" ] && { say "$path"; return 0; }
	for path in /usr/lib/postgresql/*/bin/"$1" /usr/sbin/"$1" /usr/local/sbin/"$1" \
		/opt/homebrew/opt/*/bin/"$1" /usr/local/opt/*/bin/"$1" /home/linuxbrew/.linuxbrew/opt/*/bin/"$1"; do
		[ -x "$path" ] && { say "$path"; return 0; }
	done
	return 1
}

# have_postgres finds a PostgreSQL of at least version 14.
have_postgres() {
	local path major
	for path in "$(command -v postgres 2>/dev/null)" /usr/lib/postgresql/*/bin/postgres \
		/opt/homebrew/opt/*/bin/postgres /usr/local/opt/*/bin/postgres /home/linuxbrew/.linuxbrew/opt/*/bin/postgres; do
		[ -n "$path" ] && [ -x "$path" ] || continue
		major=$("$path" --version 2>/dev/null | sed 's/[^0-9]*\([0-9][0-9]*\).*/\1/')
		[ "${major:-0}" -ge 14 ] && return 0
	done
	return 1
}

# missing prints the names of what is not there, one a line.
missing() {
	find_binary redis-server >/dev/null || say redis
	find_binary valkey-server >/dev/null || say valkey
	have_postgres || say postgres
	find_binary pgbouncer >/dev/null || say pgbouncer
	# The race detector needs cgo, and so a C compiler.
	command -v "$(go env CC | awk '{print $1}')" >/dev/null 2>&1 || say cc
}

# apt_names and brew_names translate those names into packages.
apt_names() {
	sed -e 's/^redis$/redis-server/' -e 's/^valkey$/valkey-server/' -e 's/^postgres$/postgresql/' -e 's/^cc$/gcc libc6-dev/'
}
brew_names() {
	sed -e 's/^postgres$/postgresql@17/' -e '/^cc$/d'
}

# advise says what is missing, and the command that brings it.
advise() {
	say "missing: $(say "$1" | tr '\n' ' ')"
	say "to install: redlocktest/all.bash --install"
	if command -v apt-get >/dev/null 2>&1; then
		say "       (or: apt-get install --no-install-recommends $(say "$1" | apt_names | tr '\n' ' '))"
		say "       (valkey-server is among Debian 12's backports, which --install adds)"
	elif command -v brew >/dev/null 2>&1; then
		say "       (or: brew install $(say "$1" | brew_names | tr '\n' ' '))"
	fi
}

# --- installing ------------------------------------------------------------

as_root() {
	if [ "$(id -u)" = 0 ]; then
		DEBIAN_FRONTEND=noninteractive "$@"
	elif command -v sudo >/dev/null 2>&1; then
		sudo env DEBIAN_FRONTEND=noninteractive "$@"
	else
		warn "needs root or sudo for: $*"
		return 1
	fi
}

# (No grep -q: it would end apt-cache by a broken pipe, which pipefail reports.)
apt_has() { apt-cache policy "$1" 2>/dev/null | grep 'Candidate: [^(]' >/dev/null; }

# backports_source prints an apt source for the backports of release $1, on the mirror
# and with the key that this machine takes the release itself from. $2: apt's folder.
backports_source() {
	local file apt=${2:-/etc/apt}
	for file in "$apt"/sources.list.d/*.sources; do
		[ -r "$file" ] && awk -v suite="$1" '
			function flush(  i, n, words, hit) {
				n = split(field["suites"], words, /[ \t\n]+/)
				for (i = 1; i <= n; i++) if (words[i] == suite) hit = 1
				if (hit && field["types"] ~ /(^|[ \t\n])deb([ \t\n]|$)/ && tolower(field["enabled"]) !~ /no/) {
					n = split(field["uris"], words, /[ \t\n]+/)
					for (i = 1; i <= n && words[i] == ""; i++) ;
					printf "Types: deb\nURIs: %s\nSuites: %s-backports\nComponents: main\n", words[i], suite
					for (i = 1; i <= kept; i++) printf "%s", keep[i]
					done = 1
					exit
				}
				delete field; delete keep; kept = 0; name = ""
			}
			/^[ \t]*#/ { next }
			/^[ \t]*$/ { flush(); next }
			/^[ \t]/ { field[name] = field[name] "\n" $0; if (keeping) keep[kept] = keep[kept] $0 "\n"; next }
			{
				name = tolower(substr($0, 1, index($0, ":") - 1))
				field[name] = substr($0, index($0, ":") + 1)
				keeping = name ~ /^(signed-by|architectures|trusted|check-valid-until)$/
				if (keeping) keep[++kept] = $0 "\n"
			}
			END { if (!done) flush() }
		' "$file"
	done
	for file in "$apt"/sources.list "$apt"/sources.list.d/*.list; do
		[ -r "$file" ] && awk -v suite="$1" '
			$1 == "deb" {
				options = ""
				if ($0 ~ /^[ \t]*deb[ \t]+\[/) {
					options = $0; sub(/^[^[]*\[/, "", options); sub(/\].*/, "", options)
					sub(/\[[^]]*\]/, "")
				}
				if ($3 != suite || $2 ~ /^cdrom:/) next
				printf "Types: deb\nURIs: %s\nSuites: %s-backports\nComponents: main\n", $2, suite
				n = split(options, words, /[ \t]+/)
				for (i = 1; i <= n; i++) {
					eq = index(words[i], "="); value = substr(words[i], eq + 1); gsub(/,/, " ", value)
					key = substr(words[i], 1, eq - 1)
					if (key == "signed-by") printf "Signed-By: %s\n", value
					if (key == "arch") printf "Architectures: %s\n", value
					if (key == "trusted") printf "Trusted: %s\n", value
					if (key == "check-valid-until") printf "Check-Valid-Until: %s\n", value
				}
				exit
			}
		' "$file"
	done
}

# add_backports makes valkey-server known to apt where the release itself lacks it
# (Debian 12), by adding the release's backports.
add_backports() {
	local codename source list
	codename=$(. /etc/os-release && say "${VERSION_CODENAME:-}")
	[ "$(. /etc/os-release && say "$ID")" = debian ] && [ -n "$codename" ] || return 0
	# The first stanza: a release may be listed more than once.
	source=$(backports_source "$codename" | awk 'NR > 1 && /^Types:/ { exit } { print }')
	if [ -z "$source" ]; then
		warn "found no apt source of $codename to take its backports from"
		return 0
	fi
	list=/etc/apt/sources.list.d/$codename-backports.sources
	say "adding $list"
	say "$source" | as_root tee "$list" >/dev/null
	as_root apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update -o Dir::Etc::sourcelist="$list" -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0
}

services="redis-server valkey-server postgresql pgbouncer"

# running prints which of the services run.
running() {
	local name
	[ -d /run/systemd/system ] || return 0
	for name in $services; do
		systemctl -q is-active "$name" 2>/dev/null && say "$name"
	done
	return 0
}

policy="" # the policy file, while it is there

cleanup_policy() {
	[ -z "$policy" ] || as_root rm -f "$policy"
	policy=""
}

# install_apt installs packages and leaves no service behind: a policy file keeps
# them from being started, and what is new is kept from starting at the next boot.
install_apt() {
	local packages name before status
	before=" $(running | tr '\n' ' ')"
	for name in $services; do
		dpkg -s "$name" >/dev/null 2>&1 && before="$before$name "
	done
	# Some source of the machine's may be broken that is not needed here.
	as_root apt-get -qq -o Acquire::Retries=3 update || warn "apt-get update failed; going on with what apt knows"
	case " $(say "$1" | tr '\n' ' ') " in
	*" valkey "*) apt_has valkey-server || add_backports ;;
	esac
	packages=""
	for name in $(say "$1" | apt_names); do
		if apt_has "$name"; then
			packages="$packages $name"
		else
			warn "apt knows no package $name on this release"
		fi
	done
	[ -n "$packages" ] || return 1
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		policy=/usr/sbin/policy-rc.d # cleanup removes it, whatever happens
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null && as_root chmod 755 "$policy"
	fi
	# shellcheck disable=SC2086
	as_root apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install -y --no-install-recommends $packages
	status=$?
	cleanup_policy
	[ -d /run/systemd/system ] && for name in $services; do
		case "$before" in *" $name "*) continue ;; esac
		dpkg -s "$name" >/dev/null 2>&1 && as_root systemctl -q disable --now "$name"
	done
	return $status
}

# install_brew: redis and valkey both bring the programs named redis-*, so that only
# one of them can be linked; the tests find the other where Homebrew keeps it.
install_brew() {
	local name relink=""
	for name in $(say "$1" | brew_names); do
		if [ "$name" = valkey ] && brew list redis >/dev/null 2>&1; then
			brew unlink redis >/dev/null && relink=redis
		fi
		brew install "$name" || return 1
		[ "$name" = valkey ] && brew unlink valkey >/dev/null
	done
	[ -z "$relink" ] || brew link "$relink" >/dev/null
}

install() {
	if command -v apt-get >/dev/null 2>&1; then
		install_apt "$1"
	elif command -v brew >/dev/null 2>&1; then
		install_brew "$1"
	else
		warn "knows apt and brew only; install by hand: $(say "$1" | tr '\n' ' ')"
		return 1
	fi
}

# --- checking --------------------------------------------------------------

# failed collects the names of the steps that failed.
failed=""
step() { printf '\n== %s\n' "$*"; }
fail() { failed="$failed${failed:+, }$1"; }

# repeat_later prints what a step that failed said, and repeats its end when all is over.
repeat_later() {
	cat "$2"
	{ say "--- $1"; tail -n 60 "$2"; } >>"$scratch/failures"
}

check_format() {
	step "gofmt"
	gofmt -l . >"$scratch/format" 2>&1
	[ ! -s "$scratch/format" ] || { repeat_later gofmt "$scratch/format"; fail gofmt; }
}

check_vet() {
	local module goos
	for module in $(modules); do
		for goos in linux darwin windows; do
			step "go vet for $goos in $module"
			(cd "$module" && GOOS=$goos CGO_ENABLED=0 go vet ./...) >"$scratch/vet" 2>&1 && continue
			repeat_later "go vet for $goos in $module" "$scratch/vet"
			fail "go vet for $goos in $module"
		done
	done
}

# modules prints the folder of every module, the main one first.
modules() {
	find . -name go.mod ! -path '*/.*/*' ! -path '*/testdata/*' | sort | sed 's,/go\.mod$,,'
}

# report reads the output of go test -v. It prints the lines of the packages (ok, FAIL)
# as they are, and of a package that failed what its failed tests said; it appends the
# skipped tests with their reasons to $1, the counts to $2, and the end of what each
# failed test said to $3.
report() {
	awk -v skips="$1" -v counts="$2" -v failures="$3" -v most=60 '
		function odd(name) { return result[name] != "PASS" && result[name] != "SKIP" }
		function flush(failed, package,   i, m, name, size, names) {
			for (i = 1; failed && i <= n; i++) {
				if (!odd(owner[i])) continue
				print line[i]
				if (!size[owner[i]]++) names[++m] = owner[i]
			}
			for (i = 1; i <= m; i++) recall(package, names[i], size[names[i]])
			n = 0; current = ""; split("", owner); split("", line); split("", result); split("", reason); split("", parent)
		}
		# What stands outside of all tests, a panic say, is told from its beginning.
		function recall(package, name, size,   i, k) {
			if (size == 1 && parent[name]) return # it says that a subtest failed
			print "--- " package " " (name == "" ? "(outside of its tests)" : name) >> failures
			if (name != "" && size > most) print "    ... " size - most " lines, of which are told:" >> failures
			for (i = 1; i <= n; i++) {
				if (owner[i] != name) continue
				k++
				# A line that a test wrote is told wherever it stands: logs of servers may follow.
				if (name == "" ? k <= most : k > size - most || line[i] ~ /^ +[^ ]+\.go:[0-9]+: /) print line[i] >> failures
			}
			if (name == "" && size > most) print "    ... " size - most " lines" >> failures
		}
		function keep() { line[++n] = $0; owner[n] = current }
		# The compiler speaks whenever it is done, and of another package than the rest.
		/^# [^ ]+( \[[^ ]+\])?$/ { building = 1 }
		building && /^(#|[^ ]+\.go:[0-9]+:|\t|too many errors)/ { print; print >> failures; next }
		{ building = 0 }
		/^=== (RUN|CONT|NAME) / { current = $3; next }
		/^=== PAUSE / { current = ""; next }
		/^ *--- (PASS|FAIL|SKIP): / {
			verdict = $2; sub(/:$/, "", verdict); name = $3
			result[name] = verdict; count[verdict]++
			if (verdict == "SKIP") skipped[++s] = name "\t" reason[name]
			current = name; keep()
			if (verdict == "FAIL") while (sub(/\/[^\/]*$/, "", name)) parent[name] = 1
			next
		}
		/^(ok  |FAIL)\t/ || /^\t.*coverage: / {
			for (i = 1; i <= s; i++) print $2 "\t" skipped[i] >> skips
			s = 0
			flush($1 == "FAIL", $2); print; fflush(); next
		}
		/^(PASS|FAIL)$/ || /^\?   \t/ { next }
		/^(panic: |fatal error: |WARNING: DATA RACE|SIGQUIT|exit status)/ { current = "" }
		/^exit status [0-9]+$/ { next }
		{
			if (current != "" && reason[current] == "" && $0 ~ /^ +[^ ]+\.go:[0-9]+: /) {
				reason[current] = $0; sub(/^ +[^ ]+\.go:[0-9]+: /, "", reason[current])
			}
			keep()
		}
		END {
			flush(1, "go test")
			printf "%d %d %d\n", count["PASS"], count["FAIL"], count["SKIP"] >> counts
		}
	'
}

# run_tests runs go test in a module, with these arguments.
run_tests() {
	local module=$1
	shift
	step "go test $* in $module"
	(cd "$module" && go test -v -timeout=15m "$@" 2>&1) | report "$scratch/skips" "$scratch/counts" "$scratch/failures" || fail "go test in $module"
}

# upgrade makes a go.mod with every dependency at its latest version and prints its path.
upgrade() {
	local try
	for try in 1 2 3; do # a mirror may be away for a moment
		cp go.mod "$scratch/go.mod" && cp go.sum "$scratch/go.sum" &&
			go get -modfile="$scratch/go.mod" -u -t ./... >"$scratch/upgrade" 2>&1 && break
		[ "$try" != 3 ] || { repeat_later upgrading "$scratch/upgrade" >&2; return 1; }
		sleep $((5 * try))
	done
	# What changed is what a reader of a failure wants to know.
	grep '^go: upgraded' "$scratch/upgrade" >&2
	say "$scratch/go.mod"
}

# list_skips prints how many tests of a package were skipped for a reason, first of all
# those that something is missing for. (go test -v names them.)
list_skips() {
	local tab
	tab=$(printf '\t')
	awk -F "$tab" -v module="$(go list -m 2>/dev/null)/" '
		{
			package = $1
			if (index(package, module) == 1) package = substr(package, length(module) + 1)
			count[($3 ~ /^needs / ? 0 : 1) "\t" package ": " $3]++
		}
		END { for (key in count) print key "\t" count[key] }
	' "$1" | sort | awk -F "$tab" '{ print "  " $3 " in " $2 }'
}

# summary prints what was skipped, what failed tests said, the counts and the result,
# and returns it.
summary() {
	if [ -s "$scratch/skips" ]; then
		step "skipped"
		list_skips "$scratch/skips"
	fi
	if [ -n "$failed" ] && [ -s "$scratch/failures" ]; then
		step "what failed tests said"
		cat "$scratch/failures"
	fi
	step "result"
	[ ! -s "$scratch/counts" ] ||
		awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s }' "$scratch/counts"
	if [ -n "$failed" ]; then
		say "FAILED: $failed"
		return 1
	fi
	say "ok"
}

main() {
	local install="" latest="" race=-race lack module modfile arg
	local flags packages
	flags=() packages=()
	for arg in "$@"; do
		case $arg in
		--install) install=yes ;;
		--latest) latest=yes ;;
		--help | -h) usage; return 0 ;;
		--*) warn "unknown option $arg"; usage >&2; return 2 ;;
		-race=false) race="" ;;
		-*) flags+=("$arg") ;;
		*) packages+=("$arg") ;;
		esac
	done
	cd "$(dirname "${BASH_SOURCE[0]}")/.." || return 1
	command -v go >/dev/null 2>&1 || { warn "needs Go, see https://go.dev/dl"; return 1; }
	scratch=$(mktemp -d "${TMPDIR:-/tmp}/redlock-all.XXXXXX") || return 1
	trap 'rm -rf "$scratch"; cleanup_policy' EXIT
	lack=$(missing)
	if [ -n "$lack" ] && [ -n "$install" ]; then
		step "installing $(say "$lack" | tr '\n' ' ')"
		install "$lack" || fail installing
		lack=$(missing)
	fi
	if [ -n "$lack" ]; then
		step "programs"
		advise "$lack"
		[ -z "${CI:-}" ] || fail "missing programs"
		case " $(say "$lack" | tr '\n' ' ') " in
		*" cc "*) race=""; say "without a C compiler there is no race detector" ;;
		esac
	fi
	# Tests talk to real servers: more packages at once make them slower, not quicker.
	[ "$(getconf _NPROCESSORS_ONLN 2>/dev/null || say 2)" -le 4 ] || flags=(-p=4 ${flags[@]+"${flags[@]}"})
	[ -z "$race" ] || flags=("$race" ${flags[@]+"${flags[@]}"})
	if [ -n "$latest" ]; then
		step "upgrading all dependencies, aside"
		modfile=$(upgrade) || { fail upgrading; summary; return; }
		flags=(-modfile="$modfile" ${flags[@]+"${flags[@]}"})
	fi
	if [ -n "$latest" ] || [ ${#packages[@]} -gt 0 ]; then
		[ ${#packages[@]} -gt 0 ] || packages=(./...)
		run_tests . ${flags[@]+"${flags[@]}"} "${packages[@]}"
	else
		check_format
		check_vet
		for module in $(modules); do
			run_tests "$module" ${flags[@]+"${flags[@]}"} ./...
		done
	fi
	summary
}

main "$@"
