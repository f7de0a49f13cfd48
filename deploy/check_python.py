"""Can this interpreter set Condenser up? Says what is missing; written to run on any Python 3."""

import importlib.util
import sys

OLDEST = (3, 11)


def complaint() -> str:
    if sys.version_info < OLDEST:
        have = ".".join(map(str, sys.version_info[:2]))
        return "Condenser needs Python 3.11 or later; this is " + have + " (" + sys.executable + ")."
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        return (
            "This Python has no venv module (" + sys.executable + ").\n"
            "On Debian and Ubuntu it is a package of its own: apt-get install python3-venv"
        )
    return ""


message = complaint()
if message:
    sys.exit(message + "\nInstall it, or name another interpreter: make setup PYTHON=python3.12")
