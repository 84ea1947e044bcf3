from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from lsp_editor import PROFILES, Editor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder that is a project of its own."""
    (tmp_path / "pyproject.toml").write_text("[tool.trainify]\n")
    return tmp_path


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[Editor]]]:
    """Starts editors, and ends them with the test."""
    started: list[Editor] = []

    async def begin(*arguments: object, **options: object) -> Editor:
        started.append(await Editor.start(*arguments, **options))
        return started[-1]

    yield begin
    for editor in started:
        await editor.stop()


@pytest_asyncio.fixture(params=PROFILES)
async def editor(
    request: pytest.FixtureRequest, folder: Path, start: Callable[..., Awaitable[Editor]]
) -> Editor:
    """Each of the editors, with a folder open."""
    return await start(request.param, folder)
