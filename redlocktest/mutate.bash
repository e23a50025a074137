#!/usr/bin/env bash
# Alters the Lua scripts or Go packages, one place at a time, and looks whether the tests notice it:
# `redlocktest/mutate.bash --help`. It needs bash 3.2.
set -u -o pipefail
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

usage() {
	cat <<'END'
usage: redlocktest/mutate.bash [--list] [SCRIPT...]
       redlocktest/mutate.bash --go PACKAGE...

Each call of the server, comparison, "and", "or", "not" and number of the scripts (all, or
those named) is altered in turn: a call does nothing and returns nil, a comparison loses
or gains the equal case, "not" is doubled, a number grows by one, or from 1000 on is doubled.
A mutant is noticed if a test fails, or a package runs out of its minute. The others have to
stand in redlocktest/testdata/equivalent-mutants.txt, each with the reason why no test can
tell it from the script. The exit status is 0 only if they do.

  --list  print the mutants and run nothing
  --go    alter Go packages of this module and those below them, such as ./drivers/memory, with
          gremlins. A mutant is noticed if a short test of its package fails or hangs. It prints the
          others, and fails if they are more than one in twenty. A package takes minutes to hours.
END
}

gremlins=github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0
scripts=drivers/internal/redisnode/lua
table=redlocktest/testdata/equivalent-mutants.txt

# mutants FILE... prints each mutant as "file<TAB>line<TAB>column<TAB>length<TAB>new text<TAB>name".
mutants() {
	awk '
		function mutant(at, n, new) {
			line = $0; sub(/^[ \t]+/, "", line)
			nth = ++times[FILENAME, FNR, substr($0, at, n)]
			printf "%s\t%d\t%d\t%d\t%s\t%s: %s: %s%s -> %s\n", FILENAME, FNR, at, n, new, name, line, substr($0, at, n), (nth > 1 ? " (" nth ")" : ""), new
		}
		FNR == 1 { name = FILENAME; sub(/.*\//, "", name) }
		/^[ \t]*--/ { next }
		{
			end = length($0); if (i = index($0, " -- ")) end = i # not a comment
			quoted = 0
			for (i = 1; i <= end; i++) {
				c = substr($0, i, 1); before = i > 1 ? substr($0, i - 1, 1) : " "; rest = substr($0, i, end - i + 1)
				if (c == "\047") quoted = !quoted
				if (c ~ /[0-9]/ && before !~ /[A-Za-z0-9_.%\[]/ && match(rest, /^[0-9]+/) && substr(rest, RLENGTH + 1, 1) !~ /[A-Za-z_.|]/) {
					number = substr(rest, 1, RLENGTH) + 0; n = RLENGTH; mutant(i, n, sprintf("%.0f", number < 1000 ? number + 1 : number * 2)); i += n - 1; continue
				}
				if (quoted) continue
				if (match(rest, /^(redis\.p?call|try)\(/) && before !~ /[A-Za-z0-9_.]/) { mutant(i, RLENGTH - 1, "(function() end)"); i += RLENGTH - 1; continue }
				two = substr($0, i, 2)
				if (two == "==") { mutant(i, 2, "~="); i++; continue }
				if (two == "~=") { mutant(i, 2, "=="); i++; continue }
				if (two == "<=" || two == ">=") { mutant(i, 2, c); i++; continue }
				if (c == "<" || c == ">") { mutant(i, 1, c "="); continue }
				if (before ~ /[ (]/ && match(rest, /^and /)) mutant(i, 3, "or")
				else if (before ~ /[ (]/ && match(rest, /^or /)) mutant(i, 2, "and")
				else if (before ~ /[ (,]/ && match(rest, /^not /)) mutant(i, 3, "not not")
			}
		}' "$@"
}

# The packages that are asked, those that are quick first. Their test binaries are built once, with a
# file in the package of the scripts that takes one of them from a file instead.
packages="drivers/internal/redisnode/lua drivers/internal/redisnode drivers/redlock"
build() {
	local package
	{
		printf 'package lua\n\nimport "os"\n\nfunc init() {\n\ttext, err := os.ReadFile(os.Getenv("REDLOCK_MUTANT"))\n\tif err != nil {\n\t\tpanic(err)\n\t}\n\tswitch os.Getenv("REDLOCK_MUTANT_OF") {\n'
		awk '/^\t\/\/go:embed / { file = $2; getline; printf "\tcase \"%s\":\n\t\t%s = string(text)\n", file, $1 }' "$scripts/lua.go"
		printf '\tdefault:\n\t\tpanic("no such script")\n\t}\n}\n'
	} >"$temp/mutant.go"
	printf '{"Replace": {"%s": "%s"}}\n' "$PWD/$scripts/mutant.go" "$temp/mutant.go" >"$temp/overlay.json"
	for package in $packages; do
		go test -c -overlay="$temp/overlay.json" -o "$temp/${package##*/}.test" "./$package" || return
	done
}

# noticed FILE MUTANT tests a mutant and prints which test noticed it.
noticed() {
	local package
	for package in $packages; do
		(cd "$package" && REDLOCK_MUTANT=$2 REDLOCK_MUTANT_OF=${1##*/} \
			"$temp/${package##*/}.test" -test.short -test.failfast -test.timeout=60s -test.skip="Test(Conformance|Driver)/valkey") >"$2.out" 2>&1 && continue
		grep -m 1 -oE -- '--- FAIL: [^ ]*|^panic: test timed out' "$2.out" || echo "?"
		return 0
	done
	return 1
}

# worker K tests each mutant whose number leaves K when divided by the number of workers.
worker() {
	local file line column length new name by mutant=$temp/mutant.$1.lua
	awk -v k="$1" -v n="$jobs" 'NR % n == k' "$temp/mutants" | while IFS=$'\t' read -r file line column length new name; do
		if grep -qxF -- "$name" "$table"; then
			printf 'known    %s\n' "$name"
			continue
		fi
		awk -v line="$line" -v at="$column" -v n="$length" -v new="$new" \
			'NR == line { $0 = substr($0, 1, at - 1) new substr($0, at + n) } { print }' "$file" >"$mutant"
		if by=$(noticed "$file" "$mutant"); then
			printf 'noticed  %s (%s)\n' "$name" "$by"
		else
			printf 'MISSED   %s\n' "$name"
		fi
	done
}

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
if [ "${1:-}" = --go ]; then
	[ $# -gt 1 ] || { usage >&2; exit 2; }
	tools=$(mktemp -d "${TMPDIR:-/tmp}/redlock-mutate.XXXXXX") || exit 1
	trap 'rm -rf "$tools"' EXIT
	GOBIN=$tools go install "$gremlins" || exit 1
	mkdir "$tools/t" && status=0
	for package in "${@:2}"; do
		TMPDIR=$tools/t GOFLAGS="$GOFLAGS -short" "$tools/gremlins" unleash --timeout-coefficient 20 \
			--output-statuses l --threshold-efficacy 95 "$package" || status=1
	done
	exit $status
fi
list="" files=()
for arg in "$@"; do
	case $arg in
	--list) list=yes ;;
	--help | -h) usage; exit 0 ;;
	-*) usage >&2; exit 2 ;;
	*) files+=("$scripts/${arg##*/}") ;;
	esac
done
[ ${#files[@]} != 0 ] || files=("$scripts"/*.lua)
[ -z "$list" ] || { mutants "${files[@]}" | cut -f6; exit; }
temp=$(mktemp -d "${TMPDIR:-/tmp}/redlock-mutate.XXXXXX") || exit 1
trap 'rm -rf "$temp"' EXIT
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
mkdir "$temp/t" && export TMPDIR=$temp/t
build || exit 1
mutants "${files[@]}" >"$temp/mutants"
mutants "$scripts"/*.lua | cut -f6 >"$temp/names"
if grep -vE '^(#|$)' "$table" | grep -vxFf "$temp/names"; then
	echo "these lines of $table are no mutants"
	exit 1
fi
if by=$(cp "${files[0]}" "$temp/same.lua" && noticed "${files[0]}" "$temp/same.lua"); then
	echo "the tests fail without a mutant: $by"
	exit 1
fi
jobs=$(getconf _NPROCESSORS_ONLN)
for ((k = 0; k < jobs; k++)); do worker "$k" | tee -a "$temp/said" & done
wait
known=$(grep -c ^known "$temp/said") bad=$(grep -c ^MISSED "$temp/said") all=$(wc -l <"$temp/mutants" | tr -d ' ')
printf '%d mutants: %d noticed, %d equivalent by %s, %d missed\n' "$all" "$(grep -c ^noticed "$temp/said")" "$known" "$table" "$bad"
[ "$bad" = 0 ]
