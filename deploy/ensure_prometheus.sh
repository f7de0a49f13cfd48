#!/bin/sh
# Prometheus for the tests of the alerts and the dashboard, where it can be had: `ensure_prometheus.sh VENV`. The system's
# own is taken, else the program of the system's package, which goes into VENV/bin: nothing is installed, and no service
# starts. Without one those tests are skipped, and this says so.
venv=$1

find_prometheus() {
    command -v prometheus >/dev/null || [ -x "$venv/bin/prometheus" ]
}

take_from_package() {
    cd "$work" && apt-get download prometheus && dpkg-deb -x prometheus_*.deb . && mv usr/bin/prometheus "$bin"
}

find_prometheus && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bin=$(cd "$venv/bin" && pwd)
if command -v apt-get >/dev/null; then
    echo "taking prometheus from the system's packages"
    # The lists of packages may be missing, as in an image, and only root may fetch them.
    (take_from_package) >/dev/null 2>&1 || { apt-get update -qq && (take_from_package); } >/dev/null 2>&1
fi
find_prometheus || echo "make: no Prometheus here, so alerts and dashboard are NOT TESTED (put prometheus on the PATH)" >&2
