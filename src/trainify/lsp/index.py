"""What the files of a workspace folder say of each other, with open texts in place of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..facts.project import Project


class OpenProject(Project):
    """The project of a folder, in which some files are being edited.

    What was read stays known until it changes.
    """

    max_trees_between = Project.max_trees
    max_contents = max_contents_between = 400

    def __init__(self, roots: Iterable[str], opened: Callable[[str], str | None]) -> None:
        super().__init__(roots)
        self._opened = opened

    def read(self, path: Path) -> bytes:
        text = self._opened(str(path))
        return super().read(path) if text is None else text.encode(errors="replace")

    def changed(self, path: str) -> None:
        """Read a file again when it is asked for next.

        What other files have through it stays, until :meth:`settle`: while a file is being typed,
        only its own judgement has to follow.
        """
        file = Path(path)
        self._modules.pop(file, None)
        self._contents.pop(file, None)
        for key in [key for key in self._summaries if key[1] == file]:
            del self._summaries[key]
        for told in [key for key in self._told if key[1] == file]:
            del self._told[told]

    def settle(self) -> None:
        """Let other files follow what has changed."""
        self.judged.clear()
        self._exports.clear()
        self.module_classes.clear()
        self.extensions.clear()
        self.held.clear()
        self.taken_from_loaders.clear()
        self._modules.clear()
