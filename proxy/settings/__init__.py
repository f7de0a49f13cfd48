"""Settings: what they are (`tables`), what their values may be (`values`), and where they come from (`loading`)."""

from proxy.settings.loading import (
    CONFIG_VARIABLE,
    PREFIX,
    LogFormat,
    Settings,
    SettingsError,
    environment_tree,
    load_settings,
    sources,
)

__all__ = [
    "CONFIG_VARIABLE",
    "PREFIX",
    "LogFormat",
    "Settings",
    "SettingsError",
    "environment_tree",
    "load_settings",
    "sources",
]
