#!/usr/bin/env bash
# Makes a release, or tries one as its users would: `redlocktest/release.bash --help`.
set -eu -o pipefail

usage() {
	cat <<'END'
usage: redlocktest/release.bash [VERSION]

With a VERSION, such as v0.2.0: makes the release commit, in which the nested modules
require that version, and its tags (VERSION, and FOLDER/VERSION for each nested module),
and prints the command that publishes them. The tree must be clean.

Without: does so in a clone of the last commit, serves the clone as if it were
published, and tries it in empty folders: go get of each module, README's program, and
go install of the commands. all.bash runs this.
END
}

base=github.com/redlock-go/redlock

# nested prints the folder of every nested module.
nested() { find . -name go.mod ! -path './go.mod' ! -path '*/.*/*' ! -path '*/testdata/*' | sort | sed 's,^\./,,; s,/go\.mod$,,'; }

# replaces prints a flag of go mod edit for every module of ours, $1 its verb.
replaces() {
	local folder
	for folder in "" $(nested); do
		case $1 in
		-replace) printf -- '-replace=%s=%s\n' "$base${folder:+/$folder}" "$PWD${folder:+/$folder}" ;;
		*) printf -- '-dropreplace=%s\n' "$base${folder:+/$folder}" ;;
		esac
	done
}

# prepare VERSION makes the commit and the tags in the repository around.
prepare() {
	local folder copy
	for folder in $(nested); do
		sed "/=>/!s,\($base[^ ]*\) v[0-9][^ ]*,\1 $1," "$folder/go.mod" >"$folder/go.mod.new"
		mv "$folder/go.mod.new" "$folder/go.mod"
		grep -q '^replace' "$folder/go.mod" && continue
		# It has no replace, so that go install takes it; a copy has them to be tidied with.
		copy=$folder/release.mod
		cp "$folder/go.mod" "$copy"
		go mod edit $(replaces -replace) "$copy"
		(cd "$folder" && GOWORK=off go mod tidy -modfile=release.mod)
		go mod edit $(replaces -dropreplace) "$copy"
		mv "$copy" "$folder/go.mod"
		mv "$folder/release.sum" "$folder/go.sum"
	done
	git add .
	git commit -q --allow-empty -m "Release $1"
	for folder in "" $(nested); do
		git tag "${folder:+$folder/}$1"
	done
}

# outside COMMAND... runs it as for somebody without this repository: our modules come
# from the clone, all others from this machine's cache or the ordinary proxy.
outside() {
	GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$temp/clone.insteadOf" GIT_CONFIG_VALUE_0="https://$base" \
		GOPRIVATE="$base" GOPROXY="file://$cache/cache/download,$proxy" GOSUMDB=off GOWORK=off \
		GOMODCACHE=$temp/mod GOBIN=$temp/bin GOFLAGS="-modcacherw -trimpath" "$@"
}

# dependent NAME goes to a new module in an empty folder.
dependent() {
	mkdir -p "$temp/$1" && cd "$temp/$1" && outside go mod init example.com/dependent
}

get() {
	dependent "get/$1"
	outside go get "$base$1/...@$version"
	outside go list -deps "$base$1/..."
}

readme() {
	dependent readme
	awk '/^```go$/ { n++; inside = 1; next } /^```$/ { inside = 0 } inside && n == 1' "$temp/clone/README.md" >main.go
	outside go get "$base/dlock@$version" "$base/drivers/all@$version"
	DLOCK_URL=memory: outside go run .
}

# install_command FOLDER ARG... installs the command of a folder, and runs it with these arguments.
install_command() {
	local folder=$1 program=$temp/bin/${1##*/}
	shift
	outside go install "$base/$folder@$version"
	"$program" "$@"
	rm "$program"
}

# check COMMAND... prints its name, and leaves its output for when it fails.
check() {
	printf '%s\n' "$*"
	("$@") >"$temp/log" 2>&1
}

attempt() {
	local folder
	version=v0.999.0 cache=$(go env GOMODCACHE) proxy=$(go env GOPROXY)
	temp=$(mktemp -d "${TMPDIR:-/tmp}/redlock-release.XXXXXX")
	trap '[ $? = 0 ] || cat "$temp/log"; rm -rf "$temp"' EXIT
	[ -z "$(git status --porcelain)" ] || echo "note: changes that are not committed are not in it"
	git clone -q --no-tags . "$temp/clone"
	cd "$temp/clone"
	git config user.name release
	git config user.email release@example.com
	git config commit.gpgsign false
	git config tag.gpgsign false
	check prepare "$version"
	for folder in "" $(nested | sed 's,^,/,'); do
		check get "$folder"
	done
	check readme
	for folder in dlock drivers/everything; do
		check install_command "$folder/cmd/dlock" run --url "file://$temp/locks" key -- true
	done
	for folder in redlocktest drivers/everything; do
		check install_command "$folder/cmd/redlocktest" --only basic memory:
	done
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1-} in
"") attempt ;;
v[0-9]*)
	[ -z "$(git status --porcelain)" ] || { echo "release.bash: commit your changes first" >&2; exit 1; }
	prepare "$1"
	echo "to publish: git push origin HEAD $(git tag --points-at HEAD | tr '\n' ' ')"
	;;
--help | -h) usage ;;
*) usage >&2; exit 2 ;;
esac
