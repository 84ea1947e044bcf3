"""The types of the protocol are what they are without :mod:`trainify.lsp.quick_types`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
from lsprotocol import types
from lsprotocol.converters import get_converter

OPENED = {
    "jsonrpc": "2.0",
    "method": "textDocument/didOpen",
    "params": {
        "textDocument": {"uri": "file:///a.py", "languageId": "python", "version": 1, "text": "x"}
    },
}
QUICK = """\
from trainify.lsp.quick_types import import_types
import_types()
import test_quick_types as test
test.CONVERTED = test.converted()
assert len(test.incomplete()) > 500, len(test.incomplete())
print(test.described())
assert not test.incomplete()
"""


def incomplete() -> list[str]:
    """The classes that nobody has used."""
    return [
        name
        for name, cls in types.ALL_TYPES_MAP.items()
        if not isinstance(getattr(cls, "__dict__", {}).get("__attrs_attrs__", ()), tuple)
    ]


def converted() -> str:
    """A message from JSON, and one to JSON."""
    converter = get_converter()
    opened = converter.structure(OPENED, types.DidOpenTextDocumentNotification)
    shown = types.Diagnostic(types.Range(types.Position(1, 2), types.Position(3, 4)), "no gradient")
    return f"{opened.params.text_document.text} {converter.unstructure(shown)}"


CONVERTED = ""


def described() -> str:
    """What is known of every class, and what becomes of messages."""
    lines = [CONVERTED or converted()]
    for name, cls in sorted(types.ALL_TYPES_MAP.items()):
        if isinstance(cls, type) and attrs.has(cls):
            lines += [
                f"{name}.{field.name}: {field.type} = {field.default}, {type(field.validator)}"
                for field in attrs.fields(cls)
            ]
    return "\n".join(lines)


def test_every_class_is_the_same() -> None:
    quick = subprocess.run(
        [sys.executable, "-c", QUICK],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert quick.stdout.strip() == described()
