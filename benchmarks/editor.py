"""The language server, measured through the protocol: from an edit to its diagnostics."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from .measure import ENVIRONMENT, Result, spread

SERVER = (sys.executable, "-m", "trainify", "lsp")
ROOT = Path(__file__).resolve().parents[1]
SIZES = {1_500: (60, 0.050), 10_000: (20, 0.400)}
"""Lines of a file: how many edits are measured, and the target in seconds."""


def results() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "pyproject.toml").write_text("[tool.trainify]\n")
        starts = [start_up(root) for _ in range(11)]
        yield spread("`trainify lsp`: start to first diagnostics", starts[1:], "s", 0.5)
        for lines, (edits, target) in SIZES.items():
            times = edit(root, text_of(lines), edits)
            yield Result(
                f"`trainify lsp`, {lines:,} lines: edit to diagnostics, 95th percentile",
                quantiles(times, n=20, method="inclusive")[-1],
                "s",
                median(times),
                max(times),
                target,
            )


def text_of(lines: int) -> str:
    """A file of so many lines: the layers of a server with its fused calls, then model code."""
    layers = ROOT / "fixtures" / "llama_serving"
    files = [*sorted((layers / "layers").glob("*.py")), layers / "model.py"]
    spec = importlib.util.find_spec("transformers")
    assert spec and spec.submodule_search_locations, "transformers is not installed"
    models = Path(spec.submodule_search_locations[0]) / "models"
    names = (
        "llama",
        "mistral",
        "qwen2",
        "gemma2",
        "phi3",
        "bert",
        "gpt2",
        "t5",
        "vit",
        "clip",
        "bart",
    )
    files += [models / name / f"modeling_{name}.py" for name in names]
    found: list[str] = []
    for file in files:
        text = file.read_text(encoding="utf-8").replace("from __future__ import annotations\n", "")
        for statement in ast.parse(text).body:
            piece = ast.get_source_segment(text, statement)
            decorated = getattr(statement, "decorator_list", None)
            if piece is None or decorated:
                continue
            if len(found) + piece.count("\n") + 3 <= lines:
                found += ["", "", *piece.split("\n")]
    found += ["#"] * (lines - len(found))
    return "\n".join(found) + "\n"


class Client:
    """A client that waits for each answer."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            SERVER, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._id = 0
        self.request(
            "initialize",
            {
                "processId": None,
                "rootUri": root.as_uri(),
                "capabilities": {"textDocument": {"publishDiagnostics": {}}},
            },
        )
        self.notify("initialized", {})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout
        length = 0
        while (line := self._process.stdout.readline().strip()) or not length:
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message

    def notify(self, method: str, params: object) -> None:
        self._send({"method": method, "params": params})

    def request(self, method: str, params: object) -> Any:
        self._id += 1
        self._send({"id": self._id, "method": method, "params": params})
        while (message := self._receive()).get("id") != self._id:
            pass
        return message["result"]

    def diagnostics(self, version: int) -> list[Any]:
        """Those that are published first for a version."""
        while True:
            message = self._receive()
            if message.get("method") == "textDocument/publishDiagnostics":
                if message["params"]["version"] == version:
                    found: list[Any] = message["params"]["diagnostics"]
                    return found

    def open(self, uri: str, text: str) -> None:
        document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def close(self) -> None:
        self.request("shutdown", None)
        self.notify("exit", None)
        self._process.wait(30)


def start_up(root: Path) -> float:
    """Seconds from starting the server to the first diagnostics of a small file."""
    file = ROOT / "fixtures" / "llama_serving" / "layers" / "layernorm.py"
    begin = time.perf_counter()
    client = Client(root)
    client.open((root / "norm.py").as_uri(), file.read_text(encoding="utf-8"))
    assert client.diagnostics(1)
    seconds = time.perf_counter() - begin
    client.close()
    return seconds


def edit(root: Path, text: str, edits: int) -> list[float]:
    """Seconds from each of some edits in the middle of a file to the diagnostics of the result.

    What is typed is a line of code, key by key; fixes are worked out when typing pauses.
    """
    uri = (root / f"model{len(text)}.py").as_uri()
    client = Client(root)
    client.open(uri, text)
    expected = len(client.diagnostics(1))
    lines = text.split("\n")
    middle = next(n for n in range(len(lines) // 2, 0, -1) if not lines[n] and not lines[n - 1])
    times = []
    for i in range(edits + 3):
        key = "scale = 1.0 + 2.0 * 3.0 - 4.0  # and so on, and on, and on, and on"[i % 60]
        column = i % 60
        position = {"line": middle, "character": column}
        change: dict[str, object] = {"range": {"start": position, "end": position}, "text": key}
        version = {"uri": uri, "version": i + 2}
        begin = time.perf_counter()
        client.notify(
            "textDocument/didChange", {"textDocument": version, "contentChanges": [change]}
        )
        found = client.diagnostics(i + 2)
        times.append(time.perf_counter() - begin)
        assert len(found) == expected
        time.sleep(0.15)
    client.close()
    return times[3:]
