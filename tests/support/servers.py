"""What is known of a server that nobody has asked, as the settings and the bundled table have it."""

from proxy import config_directory
from proxy.protocols.chat import ChatCounter
from proxy.servers import LessonScope
from proxy.servers.known import ModelWindows, Server
from proxy.servers.windows import Window
from proxy.settings import Settings
from proxy.tokens.counter import Tokenizers
from proxy.tokens.models import ModelTable, StatedWindow

TABLE = ModelTable.load(config_directory() / "models.toml")


def window_of(
    settings: Settings,
    model: str,
    requested: int | None = None,
    stated: StatedWindow | None = None,
    *,
    is_long: bool = False,
) -> Window:
    return ModelWindows.of(settings, TABLE, model).window(requested, stated, is_long=is_long)


def server_of(settings: Settings, model: str = "m", requested: int | None = None) -> Server:
    counter = Tokenizers().for_model(model, ChatCounter)
    return Server(LessonScope(model), counter, window_of(settings, model, requested))
