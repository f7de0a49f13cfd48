"""Settings: their keys (`loading`, `tables`) and checks of their values (`values`).

`sources` reads them from the command line, the environment and the file, and puts what is wrong into words.
"""

from proxy.settings.loading import Settings, load_settings
from proxy.settings.sources import CONFIG_VARIABLE, PREFIX, environment_tree, trees_by_source
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
