from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from lsp_editor import PROFILES, Editor
from warm_servers import WarmServers

from tests.each import some


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder that is a project of its own."""
    (tmp_path / "pyproject.toml").write_text("[tool.trainify]\n")
    return tmp_path


@pytest.fixture(scope="session")
def servers() -> Iterator[WarmServers]:
    with WarmServers() as servers:
        yield servers


@pytest_asyncio.fixture(scope="session")
async def running(servers: WarmServers) -> AsyncIterator[dict[str, Editor]]:
    """Editors that stay open from test to test, by profile."""
    editors: dict[str, Editor] = {}
    yield editors
    for editor in editors.values():
        await editor.stop()


@pytest_asyncio.fixture
async def start(
    running: dict[str, Editor], servers: WarmServers
) -> AsyncIterator[Callable[..., Awaitable[Editor]]]:
    """Starts editors, which end with the test; one for a folder alone may have been running."""
    started: list[Editor] = []
    entered: list[Editor] = []

    async def begin(profile: object, *folders: Path, **options: object) -> Editor:
        if not isinstance(profile, str) or len(folders) != 1 or options:
            started.append(await Editor.start(profile, *folders, servers=servers, **options))
            return started[-1]
        if profile not in running:
            running[profile] = await Editor.start(profile, servers=servers)
        await running[profile].enter(folders[0])
        entered.append(running[profile])
        return running[profile]

    yield begin
    for editor in entered:
        await editor.leave()
    for editor in started:
        await editor.stop()


# Neovim 0.7 itself is among the real editors.
@pytest_asyncio.fixture(params=some([p for p in PROFILES if p != "neovim@v0.7.0"], PROFILES))
async def editor(
    request: pytest.FixtureRequest, folder: Path, start: Callable[..., Awaitable[Editor]]
) -> Editor:
    """Each of the editors, with a folder open."""
    return await start(request.param, folder)
