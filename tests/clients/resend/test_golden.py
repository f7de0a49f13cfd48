"""The golden files are what the installed clients send today, over real sockets."""

from __future__ import annotations

import pytest

from tests.clients.resend import golden
from tests.clients.resend.clients import CLIENTS
from tests.clients.resend.recorded import recorded

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # litellm's own use of pydantic


@pytest.mark.parametrize("case", golden.KEPT)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_resends_what_its_golden_file_says(client: str, case: str) -> None:
    sent = recorded(client)[case]
    if golden.UPDATING:
        golden.write(client, case, CLIENTS[client].versions(), sent)
    assert sent == golden.read(client, case)


def test_there_is_one_golden_file_for_each_client_and_kept_case() -> None:
    wanted = {golden.path(client, case) for client in CLIENTS for case in golden.KEPT}
    assert set(golden.FOLDER.iterdir()) == wanted
