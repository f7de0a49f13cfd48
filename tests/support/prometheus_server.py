"""A real Prometheus on a free port, with the rules of deploy/ and one proxy to scrape, many times a second."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from tests.support import wire
from tests.support.ports import free_port
from tests.support.redis_server import await_true
from tests.support.signals import BOUND

_OFTEN = "250ms"


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def _get(self, path: str) -> Any:
        answer = wire.request(self.url, "GET", path).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        found: list[dict[str, Any]] = self._get(f"/api/v1/query?{urlencode({'query': expression})}")["result"]
        return found

    def alerts(self) -> dict[str, str]:
        """The state of each alert, `unknown` until it was evaluated."""
        rules = [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]
        return {rule["name"]: rule["state"] if rule["health"] == "ok" else rule["health"] for rule in rules}

    def is_ready(self) -> bool:
        try:
            return wire.request(self.url, "GET", "/-/ready").status == 200
        except (OSError, HTTPException):
            return False


@contextmanager
def scraping(target: str, configuration: Path) -> Iterator[Prometheus]:
    """A Prometheus by that configuration, whose job scrapes `target` instead of what the configuration finds.

    Where none is installed the test skips and says how to get one, and fails if CI=true.
    """
    program = shutil.which("prometheus") or shutil.which("prometheus", path=str(Path(sys.executable).parent))
    if program is None:
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse("prometheus is not installed: `make prometheus`")
    with tempfile.TemporaryDirectory(prefix="condenser-prometheus-") as folder:
        settings = yaml.safe_load(configuration.read_text())
        settings["global"] = {"scrape_interval": _OFTEN, "scrape_timeout": _OFTEN, "evaluation_interval": _OFTEN}
        settings["rule_files"] = [str(configuration.parent / name) for name in settings["rule_files"]]
        (job,) = settings["scrape_configs"]
        settings["scrape_configs"] = [{"job_name": job["job_name"], "static_configs": [{"targets": [target]}]}]
        file, address = Path(folder) / "prometheus.yml", f"127.0.0.1:{free_port()}"
        file.write_text(yaml.safe_dump(settings))
        places = [f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"]
        with subprocess.Popen([program, *places, "--log.level=error"], stdout=subprocess.DEVNULL) as process:
            try:
                server = Prometheus(f"http://{address}")
                await_true(server.is_ready, "prometheus is ready", 4 * BOUND)
                yield server
            finally:
                process.kill()
