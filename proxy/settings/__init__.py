"""Settings: their sources and what is wrong with them (`loading`), their keys and values (`tables`)."""

from proxy.settings.loading import CONFIG_VARIABLE, PREFIX, Settings, environment_tree, load_settings, trees_by_source
from proxy.settings.tables import DrainSettings, LimitSettings, LogSettings

__all__ = [
    "CONFIG_VARIABLE",
    "PREFIX",
    "DrainSettings",
    "LimitSettings",
    "LogSettings",
    "Settings",
    "environment_tree",
    "load_settings",
    "trees_by_source",
]
