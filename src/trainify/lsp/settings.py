"""Settings: those of the project's ``pyproject.toml``, and over them those of the client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..config import Config, ConfigError, load_config, read_options
from ..discovery import SKIPPED
from ..engine import Options

SECTION = "trainify"
"""What the client's settings are called."""

WATCHED = (
    "**/*.py",
    "**/pyproject.toml",
    "**/requirements*.{txt,in}",
    "**/requirements/*.txt",
    "**/constraints*.txt",
    "**/setup.{cfg,py}",
    "**/environment.{yml,yaml}",
    "**/{uv,poetry,pdm,Pipfile}.lock",
    "**/{pylock.toml,Pipfile}",
)
"""The files on which a judgement can rest: code, settings, and what says which release is meant."""


@dataclass(frozen=True)
class ClientSettings:
    """What the client wants for one folder; ``options`` go over those of the project."""

    enable: bool = True
    inlay_hints: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    mistakes: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: object) -> ClientSettings:
        """Take what is right of what a client sent; the rest is said in ``mistakes``."""
        if not isinstance(given, dict):
            return cls()
        given = dict(given)
        mistakes = []
        own: dict[str, bool] = {}
        for key, name in (("enable", "enable"), ("inlayHints", "inlay_hints")):
            value = given.pop(key, None)
            if isinstance(value, bool):
                own[name] = value
            elif value is not None:
                mistakes.append(f"{SECTION}.{key}: must be true or false")
        for key in _CLIENT_ONLY:
            given.pop(key, None)
        set_ = {key: value for key, value in given.items() if value is not None}
        options, wrong = read_options(set_)
        mistakes += (f"{SECTION}.{key}: {message}" for key, message in wrong.items())
        return cls(options=options, mistakes=tuple(mistakes), **own)


_CLIENT_ONLY = ("command", "trace", "logFile", "interpreter", "importStrategy")
"""What a client may keep in the same section for itself."""


@dataclass(frozen=True)
class FileSettings:
    """What holds for one file."""

    options: Options
    wanted: bool


class Configs:
    """The configuration of each folder that a file was asked about in, read once."""

    def __init__(self) -> None:
        self._known: dict[str, Config] = {}
        self._good: dict[str, Config] = {}
        self.mistakes: dict[str, ConfigError] = {}
        """By path of the file, what is wrong in it."""

    def forget(self) -> None:
        """Read everything again; where that fails, what was known before stays."""
        self._known.clear()
        self.mistakes.clear()

    def of(self, folder: str) -> Config:
        config = self._known.get(folder)
        if config is None:
            try:
                config = self._good[folder] = load_config([folder])
            except ConfigError as error:
                self.mistakes[os.path.abspath(error.path)] = error
                config = self._good.get(folder) or Config()
            self._known[folder] = config
        return config

    def for_file(self, path: str, folder: str | None, client: ClientSettings) -> FileSettings:
        """What holds for a file; ``folder`` is the one of the workspace that it is in."""
        config = self.of(os.path.dirname(path))
        options = config.options_for(path, replace(config.options, **client.options))
        relative = os.path.relpath(path, folder) if folder else os.path.basename(path)
        skipped = not SKIPPED.isdisjoint(relative.split(os.sep)[:-1])
        return FileSettings(options, client.enable and not skipped and not config.excludes(path))
