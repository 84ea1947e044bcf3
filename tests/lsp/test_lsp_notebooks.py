"""Notebooks: the code cells are one text, and each cell is shown what is found in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from lsp_editor import Editor
from lsprotocol import types

from trainify.lsp.documents import Document, Source, without_magics
from trainify.lsp.positions import Encoding

CELLS = (
    "!pip install vllm\nimport torch\nfrom vllm import _custom_ops as ops",
    "# 🔥\n\n",
    "def norm(x, weight, eps):\n    out = torch.empty_like(x)\n"
    "    ops.rms_norm(out, x, weight, eps)\n    return out",
    "%timeit norm(x, weight, 1e-6)\ny = await norm(x, weight, 1e-6)",
)


class Notebook:
    """A notebook that an editor has open."""

    def __init__(self, editor: Editor, path: Path, *cells: str) -> None:
        self.editor = editor
        self.uri = path.as_uri()
        self.version = 1
        self.cells: list[str] = []
        items = [self._cell(text) for text in cells]
        notebook = types.NotebookDocument(self.uri, "jupyter-notebook", 1, self._listed())
        editor.client.notebook_document_did_open(
            types.DidOpenNotebookDocumentParams(notebook, items)
        )

    def _cell(self, text: str, at: int | None = None) -> types.TextDocumentItem:
        uri = f"vscode-notebook-cell:{self.uri[5:]}#{len(self.editor.texts)}"
        self.cells.insert(len(self.cells) if at is None else at, uri)
        self.editor.texts[uri] = text
        self.editor.versions[uri] = 1
        return types.TextDocumentItem(uri, "python", 1, text)

    def _listed(self) -> list[types.NotebookCell]:
        return [types.NotebookCell(types.NotebookCellKind.Code, uri) for uri in self.cells]

    def _changed(self, cells: types.NotebookDocumentCellChanges) -> None:
        self.version += 1
        identifier = types.VersionedNotebookDocumentIdentifier(self.version, self.uri)
        change = types.NotebookDocumentChangeEvent(cells=cells)
        self.editor.client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(identifier, change)
        )

    def edit(self, index: int, start: int, end: int, new: str) -> None:
        editor, uri = self.editor, self.cells[index]
        where = types.Range(editor.position(uri, start), editor.position(uri, end))
        change = types.TextDocumentContentChangePartial(range=where, text=new)
        editor.texts[uri] = editor.texts[uri][:start] + new + editor.texts[uri][end:]
        editor.versions[uri] += 1
        identifier = types.VersionedTextDocumentIdentifier(editor.versions[uri], uri)
        content = types.NotebookDocumentCellContentChanges(identifier, [change])
        self._changed(types.NotebookDocumentCellChanges(text_content=[content]))

    def insert(self, index: int, text: str) -> None:
        item = self._cell(text, index)
        cell = types.NotebookCell(types.NotebookCellKind.Code, item.uri)
        array = types.NotebookCellArrayChange(index, 0, [cell])
        structure = types.NotebookDocumentCellChangeStructure(array, did_open=[item])
        self._changed(types.NotebookDocumentCellChanges(structure=structure))

    def remove(self, index: int) -> None:
        uri = self.cells.pop(index)
        array = types.NotebookCellArrayChange(index, 1, [])
        gone = [types.TextDocumentIdentifier(uri)]
        structure = types.NotebookDocumentCellChangeStructure(array, did_close=gone)
        self._changed(types.NotebookDocumentCellChanges(structure=structure))

    def close(self) -> None:
        cells = [types.TextDocumentIdentifier(uri) for uri in self.cells]
        identifier = types.NotebookDocumentIdentifier(self.uri)
        self.editor.client.notebook_document_did_close(
            types.DidCloseNotebookDocumentParams(identifier, cells)
        )


@pytest.mark.parametrize("profile", ["visual_studio_code", "pulling"])
async def test_cells(profile: str, start, folder: Path) -> None:
    editor = await start(profile, folder)
    notebook = Notebook(editor, folder / "try.ipynb", *CELLS)
    call = "ops.rms_norm(out, x, weight, eps)"
    for uri in notebook.cells:
        found = await editor.diagnostics(uri)
        assert [editor.shown(uri, d.range) for d in found] == [call] * (call in editor.texts[uri])

    notebook.insert(1, "import os")
    notebook.edit(3, 0, 0, "# 訓練\n")
    uri = notebook.cells[3]
    (found,) = await editor.diagnostics(uri)
    assert editor.shown(uri, found.range) == call

    notebook.edit(0, 0, 0, "(\n")  # one cell that is broken keeps what the others have
    (found,) = await editor.diagnostics(uri)
    assert editor.shown(uri, found.range) == call
    notebook.edit(0, 0, 2, "")
    await editor.diagnostics(uri)

    actions = await editor.actions(uri, found.range, "quickfix")
    edit = (await editor.resolved(actions[0])).edit
    changed = {c.text_document.uri: c.edits for c in edit.document_changes or ()}
    changed |= edit.changes or {}
    assert set(changed) <= set(notebook.cells) and uri in changed
    assert "is_grad_enabled" in "".join(e.new_text for e in changed[uri])
    assert any("import torch.nn.functional" in e.new_text for c in changed.values() for e in c)

    first = notebook.cells[0]
    notebook.remove(0)  # and with it the import
    assert await (editor.diagnostics(uri) if editor.pulls else editor.again(uri)) == []
    if profile != "pulling":
        assert not editor.published[first][-1].diagnostics
    notebook.close()
    if profile != "pulling":
        await editor.until(lambda: not editor.published[uri][-1].diagnostics)


@pytest.mark.parametrize(
    "cell",
    [
        "%matplotlib inline\nx = 1",
        "x = !ls -la\ny, z = %time f()",
        "if x:\n    !pip install y\n    %cd z",
        "!a \\\n  b\nx = 1",
        "torch.empty??\n?torch\nx.y?",
        "%%bash\nfor i in a; do echo $i; done",
        "%%time\nx = 1\n",
        "%%html\n<b>é🔥</b>\r\n</b>",
        "!",
        "x = (1\n  % 2)",
    ],
)
def test_magics_become_python_of_the_same_length(cell: str) -> None:
    code = without_magics(cell)
    assert len(code) == len(cell)
    assert code.count("\n") == cell.count("\n")
    ast.parse(code)


def test_what_is_python_stays() -> None:
    for cell in ("x = (1\n  % 2)", 'x = """\n!ls\n"""', "x = a if b != c else d\n", "", "'100%'"):
        assert without_magics(cell) == cell


def test_no_edit_of_a_magic() -> None:
    cells = [Document("a", 1, "x = 1\n!ls", Encoding.Utf16), Document("b", 1, "y", Encoding.Utf16)]
    source = Source("n", "n.ipynb", cells, notebook=True)
    assert source.text == "x = 1\n0#s\ny"
    assert source.keeps(0, 6) and source.keeps(6, 6) and source.keeps(10, 11)
    assert not source.keeps(5, 8)
    assert not source.keeps(8, 10)  # across two cells
