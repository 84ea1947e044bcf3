from __future__ import annotations

import inspect
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
FEW = [p for p in PROFILES if p != "neovim@v0.7.0"]


@pytest_asyncio.fixture(params=some(FEW, PROFILES))
async def each_editor(
    request: pytest.FixtureRequest, folder: Path, start: Callable[..., Awaitable[Editor]]
) -> Editor:
    """Each of the editors, with a folder open."""
    return await start(request.param, folder)


@pytest_asyncio.fixture
async def editor(
    request: pytest.FixtureRequest, folder: Path, start: Callable[..., Awaitable[Editor]]
) -> Editor:
    """One of them; the tests of a module have them in turn, and all of them in the soak."""
    return await start(request.param, folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    tests = [
        name
        for name, value in vars(metafunc.module).items()
        if name.startswith("test_") and inspect.iscoroutinefunction(value)
        if "editor" in inspect.signature(value).parameters
    ]
    if metafunc.function.__name__ in tests:
        one = FEW[tests.index(metafunc.function.__name__) % len(FEW)]
        metafunc.parametrize("editor", some([one], PROFILES), indirect=True)
