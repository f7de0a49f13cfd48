#!/bin/sh
# The browser for the tests of the dashboard, where it can be had: the system's own, else from the system's packages,
# else from Playwright. Without one those tests are skipped, and this says so.
find_chromium() {
    for name in chromium chromium-browser google-chrome; do
        command -v "$name" >/dev/null && return 0
    done
    ls "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}"/chromium* >/dev/null 2>&1
}

find_chromium && exit 0
sudo=$([ "$(id -u)" = 0 ] || echo sudo -n)
if command -v apt-get >/dev/null && $sudo true 2>/dev/null; then
    echo "installing chromium from the system's packages"
    timeout 300 $sudo sh -c 'apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends chromium' \
        >/dev/null 2>&1
fi
find_chromium || timeout 120 .venv/bin/playwright install --only-shell chromium >/dev/null 2>&1
find_chromium || echo "make: no Chromium here, so the dashboard is NOT TESTED in a browser (apt-get install chromium)" >&2
