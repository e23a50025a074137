#!/usr/bin/env bash
# Alters the Lua scripts, one place at a time, and looks whether the tests notice it:
# `redlocktest/mutate.bash --help`. It needs bash 3.2.
set -u -o pipefail
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

usage() {
	cat <<'END'
usage: redlocktest/mutate.bash [--list] [SCRIPT...]

Each call of the server, comparison, "and", "or", "not" and number of the scripts (all, or
those named) is altered in turn: a call does nothing and returns nil, a comparison loses
or gains the equal case, "not" is doubled, a number grows by one. A mutant is noticed if
a test fails, or a package runs out of its minute. The others have to stand in
redlocktest/testdata/equivalent-mutants.txt, each with the reason why no test can tell it
from the script. The exit status is 0 only if they do.

  --list  print the mutants and run nothing
END
}

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
					mutant(i, RLENGTH, substr(rest, 1, RLENGTH) + 1); i += RLENGTH - 1; continue
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

# noticed FILE MUTANT... tests a mutant and prints which test noticed it. The packages are asked in turn,
# those that are quick first.
noticed() {
	local package
	printf '{"Replace": {"%s": "%s"}}\n' "$PWD/$1" "$temp/mutant.lua" >"$temp/overlay.json"
	for package in ./drivers/internal/redisnode ./drivers/goredis ./drivers/redlock; do
		go test -overlay="$temp/overlay.json" -short -failfast -timeout=60s "$package" >"$temp/out" 2>&1 && continue
		grep -m 1 -oE -- '--- FAIL: [^ ]*|^panic: test timed out|^FAIL.*build failed' "$temp/out" || echo "?"
		return 0
	done
	return 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
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
all=0 seen=0 known=0 bad=0
while IFS=$'\t' read -r file line column length new name; do
	all=$((all + 1))
	if grep -qxF -- "$name" "$table"; then
		known=$((known + 1))
		continue
	fi
	awk -v line="$line" -v at="$column" -v n="$length" -v new="$new" \
		'NR == line { $0 = substr($0, 1, at - 1) new substr($0, at + n) } { print }' "$file" >"$temp/mutant.lua"
	if by=$(noticed "$file"); then
		seen=$((seen + 1))
		printf 'noticed  %s (%s)\n' "$name" "$by"
	else
		bad=$((bad + 1))
		printf 'MISSED   %s\n' "$name"
	fi
done < <(mutants "${files[@]}")
printf '%d mutants: %d noticed, %d equivalent by %s, %d missed\n' "$all" "$seen" "$known" "$table" "$bad"
[ "$bad" = 0 ]
