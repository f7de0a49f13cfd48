#!/bin/sh
# Looks the packages of locks up among known vulnerabilities. Usage: audit.sh PIP_AUDIT LOCK...
# Exits with 1 if one has any, and with 2 if the service could not be asked about each of them: then nothing is said of
# those, so it is a failure too.
tool=$1
shift
status=0
for lock in "$@"; do
    # --strict: a package that the service does not know would pass otherwise.
    if found=$("$tool" --strict --disable-pip --require-hashes --progress-spinner off -r "$lock" 2>&1); then
        echo "$lock: $found"
        continue
    fi
    echo "$lock: $found" >&2
    case $found in
    *"known vulnerabilit"*) status=1 ;;
    *)
        echo "audit: the vulnerability service could not be asked about $lock, so nothing is known of its packages" >&2
        [ $status = 1 ] || status=2
        ;;
    esac
done
exit $status
