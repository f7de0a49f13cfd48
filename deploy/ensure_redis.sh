#!/bin/sh
# Make sure that `redis-server` can be started by the tests. It is never run as a service.
#   found      nothing to do
#   CI=true    installed with the system's package manager; a failure is a failure
#   otherwise  says what is skipped and how to get it, and goes on
set -eu

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

install_redis() {
    if command -v apt-get >/dev/null; then
        as_root apt-get update -qq
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server
    elif command -v apk >/dev/null; then
        as_root apk add --quiet redis
    elif command -v dnf >/dev/null; then
        as_root dnf install --quiet --assumeyes redis
    else
        echo "ensure_redis: no apt-get, apk or dnf here to install redis-server with" >&2
        return 1
    fi
}

if command -v redis-server >/dev/null; then
    exit 0
fi

if [ "${CI:-}" = true ]; then
    # The log of a package manager is of interest only when it fails.
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    if install_redis >"$log" 2>&1 && command -v redis-server >/dev/null; then
        exit 0
    fi
    cat "$log" >&2
    echo "ensure_redis: could not install redis-server, and CI=true runs no tests without it" >&2
    exit 1
fi

cat >&2 <<'TXT'
**********************************************************************
  redis-server is not installed: every test that needs Redis is SKIPPED.
  To run them, install it and run `make test` again:
      Debian, Ubuntu   apt-get install redis-server
      Alpine           apk add redis
      Fedora           dnf install redis
      macOS            brew install redis
**********************************************************************
TXT
