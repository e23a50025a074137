# What the tests need, and how it is installed on Debian, Ubuntu and macOS: a part of all.bash.

# programs: what the tests need, the packages of Debian, the formula of Homebrew. A
# driver of another server adds a line.
programs='redis-server  redis-server   redis
valkey-server valkey-server  valkey
postgres      postgresql     postgresql@17
pgbouncer     pgbouncer      pgbouncer
etcd          etcd-server    etcd
mariadbd      mariadb-server-core mariadb
zkServer.sh   zookeeper      zookeeper
cc            gcc,libc6-dev  gcc'

# nats_server is where nats-server is, which is built from its module: Debian's is too old.
# consul, of which Debian has none, takes seven minutes of processor time, so only --deep asks for it.
case $(uname) in
Darwin) built=$HOME/Library/Caches/redlock ;;
*) built=${XDG_CACHE_HOME:-$HOME/.cache}/redlock ;;
esac
nats_server=$built/nats-server-2.15.2 consul=$built/consul-1.16.3
build_nats() { GOFLAGS="-trimpath -ldflags=-w" go build -C redlocktest/server/testdata/nats -o "$nats_server" github.com/nats-io/nats-server/v2; }
build_consul() { GOFLAGS="-trimpath -ldflags=-w" go build -C redlocktest/server/testdata/consul -o "$consul" github.com/hashicorp/consul; }
has_consul() { [ -x "$consul" ] || command -v consul >/dev/null; }
wants_consul() { [ "${depth:-}" = --deep ] && ! has_consul; }

# missing prints those that are not there: the program, or what is in apt or brew. It looks
# in PATH and where Debian and Homebrew put what they leave out of it, as redlocktest/server.
missing() {
	local program apt brew
	PATH=$PATH$(printf ':%s' /usr/lib/postgresql/*/bin /usr/sbin /usr/local/sbin /usr/share/zookeeper/bin \
		/{opt/homebrew,usr/local,home/linuxbrew/.linuxbrew}/opt/*/{,libexec/}bin)
	say "$programs" | while read -r program apt brew; do
		command -v "$program" >/dev/null || eval "say \$$1"
	done | tr ',\n' '  '
	[ "$1" != program ] || [ -x "$nats_server" ] || say "nats-server "
	[ "$1" != program ] || ! wants_consul || say "consul "
}

as_root() { $([ "$(id -u)" = 0 ] || say sudo) env DEBIAN_FRONTEND=noninteractive "$@"; }

# install_apt PACKAGE... starts no service. What the release lacks (valkey-server in
# Debian 12) comes from Debian's backports, of which only these commands know. A package that
# cannot be had keeps no other from being installed.
policy="" # the file that keeps packages from starting services, while it is there
install_apt() {
	local apt="apt-get -qq -o=Acquire::Retries=3" keys=/usr/share/keyrings/debian-archive-keyring.gpg archive codename package can=()
	as_root $apt update || say "apt-get update failed; going on with what apt knows"
	if [ -e "$keys" ] && ! $apt -s install "$@" >/dev/null 2>&1; then
		codename=$(. /etc/os-release && say "${VERSION_CODENAME:-}")
		archive=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$codename //p" | head -n 1)
		cat /etc/apt/sources.list >"$scratch/sources.list" 2>/dev/null
		say "deb [signed-by=$keys] $archive $codename-backports main" >>"$scratch/sources.list"
		chmod 755 "$scratch" # for apt's own user
		apt="$apt -o=Dir::Etc::sourcelist=$scratch/sources.list"
		as_root $apt update
	fi
	for package in "$@"; do
		if $apt -s install "$package" >/dev/null 2>&1; then can+=("$package"); else say "apt cannot install $package"; fi
	done
	[ -e /usr/sbin/policy-rc.d ] || policy=/usr/sbin/policy-rc.d
	[ -z "$policy" ] || policy_text | as_root install -m 755 /dev/stdin "$policy"
	as_root $apt -o=DPkg::Lock::Timeout=300 install -y --no-install-recommends ${can[@]+"${can[@]}"}
	permit_services
	[ ! -d /run/systemd/system ] || for package in "$@"; do as_root systemctl -q disable "$package"; done 2>/dev/null # gcc is none
}
# policy_text prints a policy that ends with this process: should the process be killed, the file
# forbids nothing any more, and goes when it is asked next.
policy_text() {
	printf '#!/bin/sh\n# While process %s installs packages, they start no services.\n' $$
	printf 'if kill -0 %s 2>/dev/null; then exit 101; fi\nrm -f "$0"\nexit 0\n' $$
}
permit_services() { [ -z "$policy" ] || as_root rm -f "$policy"; policy=""; }

# install: of Homebrew's redis and valkey only one can be linked; the tests find the other.
install() {
	[ -x "$nats_server" ] || build_nats
	! wants_consul || build_consul
	[ -n "$(missing program)" ] || return 0
	if command -v apt-get >/dev/null; then
		[ "$(id -u)" = 0 ] || command -v sudo >/dev/null || { say "needs root or sudo: as root, apt-get install $(missing apt)"; return 1; }
		install_apt $(missing apt)
	elif command -v brew >/dev/null; then
		brew unlink redis valkey 2>/dev/null
		brew install $(missing brew)
		brew unlink valkey && brew link redis
	else
		say "neither apt-get nor brew is here: install $(missing program)by other means"
	fi
	[ -z "$(missing program)" ]
}
