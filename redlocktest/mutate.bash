#!/usr/bin/env bash
# Alters the Lua scripts or Go files, one place at a time, and looks whether the tests notice it:
# `redlocktest/mutate.bash --help`. It needs bash 3.2.
set -u -o pipefail
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

usage() {
	cat <<'END'
usage: redlocktest/mutate.bash [--list] [--go] [--for SECONDS] [FILE...]

Alters the scripts (all of them, or those named), or Go files such as drivers/redlock/verdict.go, in
one place after the other. In a script, a call of the server does nothing and returns nil. In Go, a
statement that is a call is left out, a variable keeps its value, "+" and "-" are swapped. In both, a
comparison loses or gains the equal case, "and" and "or" are swapped, a condition is negated or "not"
doubled, a number grows by one, or from 1000 on is doubled.

A mutant is noticed if a short test fails, or a package runs out of its time: the packages of the
scripts for a script, its own package for a Go file. The others have to stand in
redlocktest/testdata/equivalent-mutants.txt, each with the reason why no test can tell it from what
is there. The exit status is 0 only if they do. JOBS is how many run at once (as many as there are
processors). A script takes seconds, a Go file minutes to an hour.

  --list         print the mutants and run nothing
  --go           the Go files that decide who holds a lock, in place of the scripts
  --for SECONDS  begin at a mutant that the hash of the commit chooses, and end after this time
END
}

scripts=drivers/internal/redisnode/lua
table=redlocktest/testdata/equivalent-mutants.txt

# The Go files that decide who holds a lock, with which token and until when.
decide=$(echo drivers/redlock/{bid,guard,node,terms,verdict}.go dlock/{client,do,lease,leases,registry,renew,tenure,wait}.go \
	driver/base/{calls,lease,session,undo}.go drivers/file/state.go drivers/memory/{lease,space}.go \
	drivers/etcd/{layout,lease,session}.go)

# mutants FILE... prints each mutant as "file<TAB>line<TAB>column<TAB>length<TAB>new text<TAB>name".
mutants() {
	awk '
		function mutant(at, n, new) {
			line = $0; sub(/^[ \t]+/, "", line)
			nth = ++times[FILENAME, FNR, substr($0, at, n)]
			printf "%s\t%d\t%d\t%d\t%s\t%s: %s: %s%s -> %s\n", FILENAME, FNR, at, n, new, name, line, substr($0, at, n), (nth > 1 ? " (" nth ")" : ""), new
		}
		# go_line alters what stands outside of texts and comments.
		function go_line(    i, c, two, rest, before, quote, n) {
			match($0, /^\t*/); i = RLENGTH + 1; rest = substr($0, i)
			if (!raw && rest ~ /^[A-Za-z_][A-Za-z0-9_.]*\(.*\)$/ && rest !~ /^(panic|[A-Za-z_.]*ock)\(/) mutant(i, length(rest), "{}")
			if (!raw && match(rest, /^[A-Za-z][A-Za-z0-9_.]* = /)) mutant(i, RLENGTH - 3, "_")
			if (!raw && match($0, /(if|;) [A-Za-z_][^=<>!&|;]* \{$/)) { n = $0 ~ /if [^;]*\{$/ ? 2 : 1; mutant(RSTART, n, substr($0, RSTART, n) " !") }
			for (; i <= length($0); i++) {
				c = substr($0, i, 1); two = substr($0, i, 2); before = i > 1 ? substr($0, i - 1, 1) : " "; rest = substr($0, i)
				if (raw || c == "`") { if (c == "`") raw = !raw; continue }
				if (quote != "") { if (c == "\\") i++; else if (c == quote) quote = ""; continue }
				if (c == "\"" || c == "\047") { quote = c; continue }
				if (two == "//") return
				if (c ~ /[0-9]/ && before !~ /[A-Za-z0-9_.]/ && match(rest, /^[0-9]+/) && substr(rest, RLENGTH + 1, 1) !~ /[A-Za-z_.]/) {
					n = RLENGTH; mutant(i, n, sprintf("%.0f", substr(rest, 1, n) < 1000 ? substr(rest, 1, n) + 1 : substr(rest, 1, n) * 2)); i += n - 1; continue
				}
				if (two in swapped) { mutant(i, 2, swapped[two]); i++; continue }
				if (two ~ /^(<-|<<|>>|:=|&\^|\+=|-=)$/) { i++; continue }
				if (c == "<" || c == ">") mutant(i, 1, c "=")
				else if (c == "!") mutant(i, 1, "!!")
				else if (rest ~ /^[-+] / && before == " ") mutant(i, 1, c == "+" ? "-" : "+")
			}
		}
		BEGIN { n = split("== != != == <= < >= > && || || && ++ -- -- ++", pair, " "); for (i = 1; i < n; i += 2) swapped[pair[i]] = pair[i + 1] }
		FNR == 1 { name = FILENAME; raw = 0; go = name ~ /\.go$/; if (!go) sub(/.*\//, "", name) }
		go { go_line(); next }
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

# The packages that are asked for a script, those that are quick first. Their test binaries are built once, so
# that the package of the scripts takes one of them from a file instead.
packages="drivers/internal/redisnode/lua drivers/internal/redisnode drivers/redlock"
build() {
	local package
	awk '{ print }
		/^import \($/ { print "\t\"os\"" }
		/^func file\(name string\) string \{$/ {
			n++
			print "\tif name+\".lua\" == os.Getenv(\"REDLOCK_MUTANT_OF\") {\n\t\ttext, err := os.ReadFile(os.Getenv(\"REDLOCK_MUTANT\"))"
			print "\t\tif err != nil {\n\t\t\tpanic(err)\n\t\t}\n\t\treturn string(text)\n\t}"
		}
		END { exit n != 1 }' "$scripts/lua.go" >"$temp/mutant.go" || { echo "no func file in $scripts/lua.go"; return 1; }
	printf '{"Replace": {"%s": "%s"}}\n' "$PWD/$scripts/lua.go" "$temp/mutant.go" >"$temp/overlay.json"
	for package in $packages; do
		go test -c -overlay="$temp/overlay.json" -o "$temp/${package##*/}.test" "./$package" || return
	done
}

# noticed FILE MUTANT tests a mutant and prints which test noticed it, or that it does not compile.
noticed() {
	local package
	case $1 in
	*.go)
		printf '{"Replace": {"%s": "%s"}}\n' "$PWD/$1" "$2" >"$2.json"
		(cd "${1%/*}" && go test -overlay="$2.json" -count=1 -short -failfast -vet=off -timeout=2m .) >"$2.out" 2>&1 && return 1
		grep -m 1 -oE -- '--- FAIL: [^ ]*|^(panic|fatal error): .{0,60}|\[build failed\]' "$2.out" || echo "?"
		return 0
		;;
	esac
	for package in $packages; do
		(cd "$package" && REDLOCK_MUTANT=$2 REDLOCK_MUTANT_OF=${1##*/} \
			"$temp/${package##*/}.test" -test.short -test.failfast -test.timeout=60s -test.skip="Test(Conformance|Driver)/valkey") >"$2.out" 2>&1 && continue
		grep -m 1 -oE -- '--- FAIL: [^ ]*|^(panic|fatal error): .{0,60}' "$2.out" || echo "?"
		return 0
	done
	return 1
}

# worker K tests each mutant whose number leaves K when divided by the number of workers.
worker() {
	local file line column length new name by mutant
	awk -v k="$1" -v n="$jobs" 'NR % n == k' "$temp/mutants" | while IFS=$'\t' read -r file line column length new name; do
		[ -z "$limit" ] || [ "$SECONDS" -lt "$limit" ] || break
		if grep -qxF -- "$name" "$table"; then
			printf 'known    %s\n' "$name"
			continue
		fi
		mutant=$temp/mutant.$1.${file##*.}
		awk -v line="$line" -v at="$column" -v n="$length" -v new="$new" \
			'NR == line { $0 = substr($0, 1, at - 1) new substr($0, at + n) } { print }' "$file" >"$mutant"
		if by=$(noticed "$file" "$mutant"); then
			[ "$by" = "[build failed]" ] || printf 'noticed  %s (%s)\n' "$name" "$by"
		else
			printf 'MISSED   %s\n' "$name"
		fi
	done
}

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
list="" files=() limit=""
while [ $# != 0 ]; do
	case $1 in
	--list) list=yes ;;
	--go) files+=($decide) ;;
	--for)
		limit=${2:-} && shift
		case $limit in "" | *[!0-9]*) usage >&2; exit 2 ;; esac
		;;
	--help | -h) usage; exit 0 ;;
	-*) usage >&2; exit 2 ;;
	*.go) files+=("$1") ;;
	*) files+=("$scripts/${1##*/}") ;;
	esac
	shift
done
[ ${#files[@]} != 0 ] || files=("$scripts"/*.lua)
[ -z "$list" ] || { mutants "${files[@]}" | cut -f6; exit; }
temp=$(mktemp -d "${TMPDIR:-/tmp}/redlock-mutate.XXXXXX") || exit 1
trap 'rm -rf "$temp"' EXIT
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
mkdir "$temp/t" && export TMPDIR=$temp/t
case "${files[*]}" in *.lua*) build || exit 1 ;; esac
mutants "${files[@]}" >"$temp/mutants"
if [ -n "$limit" ]; then
	all=$(wc -l <"$temp/mutants") hash=$(git rev-parse --short=7 HEAD) || exit 1
	first=$((0x$hash % all))
	{ tail -n +$((first + 1)) "$temp/mutants" && head -n "$first" "$temp/mutants"; } >"$temp/order" && mv "$temp/order" "$temp/mutants"
fi
mutants "$scripts"/*.lua $(sed -n 's/^\([a-z/_]*\.go\): .*/\1/p' "$table" | sort -u) | cut -f6 >"$temp/names"
if grep -vE '^(#|$)' "$table" | grep -vxFf "$temp/names"; then
	echo "these lines of $table are no mutants"
	exit 1
fi
same=$temp/same.${files[0]##*.}
if by=$(cp "${files[0]}" "$same" && noticed "${files[0]}" "$same"); then
	echo "the tests fail without a mutant: $by"
	exit 1
fi
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
for ((k = 0; k < jobs; k++)); do worker "$k" | tee -a "$temp/said" & done
wait
known=$(grep -c ^known "$temp/said") bad=$(grep -c ^MISSED "$temp/said") all=$(wc -l <"$temp/said" | tr -d ' ')
printf '%d mutants: %d noticed, %d equivalent by %s, %d missed\n' "$all" "$(grep -c ^noticed "$temp/said")" "$known" "$table" "$bad"
[ "$bad" = 0 ]
