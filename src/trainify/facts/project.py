"""Names across files: which module a path is, and what another module of the project exports."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from .called import positional
from .memo import Memo, once
from .names import Target
from .spelling import usual
from .walk import walk

if TYPE_CHECKING:
    from .extensions import Extension, Held
    from .module import ModuleFacts

T = TypeVar("T")


class Project:
    """The files of a run; others of the same packages are read when a name leads there.

    ``roots`` are the paths given by the user; nothing is read before it is asked for.  Files have
    the bytes that ``rewritten`` says, by their paths, instead of what lies on the disk.
    """

    max_trees = 1_000_000
    """Characters of other files whose syntax trees are kept, which take forty times as much."""

    max_trees_between = 100_000
    """The same from one file that is judged to the next."""

    max_contents = 320
    """Other files whose bytes are kept while one file is judged: all that are around it."""

    max_contents_between = 16
    """The same from one file to the next."""

    def __init__(
        self, roots: Iterable[str | Path] = (), rewritten: Mapping[str, bytes] | None = None
    ) -> None:
        self.roots = tuple(Path(root) for root in roots)
        self._rewritten = {os.path.abspath(path): data for path, data in (rewritten or {}).items()}
        self.forget()

    def forget(self) -> None:
        """Read every file again when it is asked for."""
        self._modules: dict[Path, ModuleFacts | None] = {}
        """What was asked for last comes last."""
        self.judged: Memo = {}
        """Facts that hold trees of several files; see :meth:`begin`."""
        self._exports: dict[str, tuple[Target, ...]] = {}
        self._found: dict[tuple[Path, str], Path | None] = {}
        self._seen: dict[tuple[str, str], Path | None] = {}
        self._contents: dict[Path, bytes] = {}
        self._summaries: dict[tuple[object, Path], object] = {}
        self._told: dict[tuple[object, Path, str], bool] = {}
        self._loaded: set[Path] = set()
        self.module_classes: dict[tuple[Path, str], bool] = {}
        """Whether classes of other files, by their names there, derive from ``nn.Module``."""
        self._neighbours: dict[Path, tuple[Path, ...]] = {}
        self._below: dict[Path, tuple[Path, ...] | None] = {}
        self._with: dict[tuple[bytes, Path], tuple[Path, ...]] = {}
        self._imports: dict[Path, frozenset[Path]] = {}
        self._outsides: dict[Path, Path] = {}
        self.extensions: dict[str, tuple[Extension, ...]] = {}
        """What ``setup.py`` compiles, by the folders of the files that may import it."""
        self.held: dict[tuple[Path, tuple[str, ...], bool], tuple[Held, ...]] = {}
        """What names of other files hold of extensions, or what calling them gives."""
        self.taken_from_loaders: dict[Path, frozenset[str]] = {}
        """The names that files give what they import from those that load extensions."""

    @property
    def loaded(self) -> frozenset[Path]:
        """The files read so far to answer questions about others."""
        return frozenset(self._loaded)

    # -- module names ---------------------------------------------------------------------------

    def module_name(self, path: str | Path) -> str:
        """Dotted name of a file, from the outermost folder with an ``__init__.py``."""
        file = Path(path)
        parts = file.parent.relative_to(self._outside(file.parent)).parts
        return ".".join(parts if file.name == "__init__.py" else [*parts, file.stem])

    def _outside(self, folder: Path) -> Path:
        """The first folder from this one upwards that is no package."""
        if folder not in self._outsides:
            outside = folder
            while outside.name and (outside / "__init__.py").is_file():
                outside = outside.parent
            self._outsides[folder] = outside
        return self._outsides[folder]

    def absolute_import(self, module: ModuleFacts, node: ast.ImportFrom) -> str:
        """The absolute name of the module that a ``from ... import`` names."""
        if not node.level:
            return node.module or ""
        package = module.module_name.split(".")
        if Path(module.path).name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - (node.level - 1)] if node.level > 1 else package
        return ".".join([*[p for p in package if p], *([node.module] if node.module else [])])

    # -- other modules --------------------------------------------------------------------------

    def follow(
        self, module: ModuleFacts, target: Target, relevant: Callable[[bytes], object]
    ) -> tuple[Target, ...]:
        """What a project's own modules make of a name; itself where they hand nothing on by it.

        ``pkg.ops.norm`` is ``vllm._custom_ops.rms_norm`` when ``pkg/ops.py`` imports it so.  Only
        modules that are relevant by their bytes are read, and those from which a package takes what
        it hands on.  Itself is also among several where it may be something else.

        What ``functools.partial`` binds there is a constant without a place, or, where it is none,
        a name without one.
        """
        found: list[Target] = []
        seen: set[str] = set()
        pending = [target]
        while pending:
            each = pending.pop(0)
            if each.name in seen:
                found.append(each)
                continue
            seen.add(each.name)
            if each.name not in self._exports:
                self._exports[each.name] = self._exported(module, each.name, relevant)
            handed_on = self._exports[each.name]
            if not handed_on:
                found.append(each)
            pending += (
                Target(t.name, (*t.args, *each.args), (*t.keywords, *each.keywords))
                for t in handed_on
            )
        return tuple(found)

    def _exported(
        self, module: ModuleFacts, qualified: str, relevant: Callable[[bytes], object]
    ) -> tuple[Target, ...]:
        owner, _, name = qualified.rpartition(".")
        if not owner or owner == module.module_name:
            return ()
        name, _, key = name.partition("[")
        path = self.find_module(module, owner)
        if path is None:
            moved = self._exported(module, owner, relevant)
            if key or moved:
                return tuple(Target(f"{t.name}.{name}") for t in moved if not key)
            return self._held(module, owner, name, relevant)
        if not relevant(self._bytes(path)):
            return tuple(Target(f"{inner}{key and '['}{key}") for inner in self.taken(path, name))
        other = self.load(path)
        if other is None:
            return ()
        if key:
            entry = other.names.entry(name, key.rstrip("]"))
            targets = other.names.resolve(entry) if entry is not None else ()
            return tuple(_without_place(other, t) for t in targets if len(targets) == 1)
        bindings = other.names.bindings(other.tree).get(name, ())
        if not any(binding.value is not None for binding in bindings):
            imported = [b.qualified for b in bindings if b.qualified not in (None, qualified)]
            if imported or bindings:
                return tuple(Target(name) for name in imported[-1:] if name is not None)
        targets, opaque = other.names.at_top(name)
        handed_on = [_without_place(other, target) for target in targets]
        if opaque and handed_on:
            handed_on.append(Target(qualified))
        return tuple(handed_on)

    def _held(
        self,
        module: ModuleFacts,
        owner: str,
        name: str,
        relevant: Callable[[bytes], object],
    ) -> tuple[Target, ...]:
        """``pkg.ops.OPS.norm``, of a class or an object that another file makes."""
        outer, _, holder = owner.rpartition(".")
        path = self.find_module(module, outer) if outer and outer != module.module_name else None
        other = self.load(path) if path is not None and relevant(self._bytes(path)) else None
        held = other.names.held_at_top(holder, name) if other is not None else None
        if other is None or held is None:
            return ()
        targets = other.names.resolve(held)
        return tuple(_without_place(other, t) for t in targets if len(targets) == 1)

    def taken(self, path: Path, name: str) -> Iterator[str]:
        """From where a package's ``__init__.py`` takes a name, told by its bytes."""
        if path.name != "__init__.py":
            return
        word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
        for file, given, known_as in self.imported(path):
            if known_as == name:
                inner = self.module_name(file)
                yield f"{inner}.{given}" if given else inner
            elif known_as == "*" and word.search(self._bytes(file)):
                yield f"{self.module_name(file)}.{name}"

    def find_module(self, module: ModuleFacts, qualified: str) -> Path | None:
        """The project's file of this module, seen from ``module``; None for installed packages."""
        return self.find_file(module.path, qualified)

    def find_file(self, seen_from: str, qualified: str) -> Path | None:
        """The same of a file that need not be parsed."""
        if not qualified:
            return None
        key = os.path.dirname(seen_from), qualified  # by which all the rest is decided
        if key not in self._seen:
            bases = self._bases(seen_from, qualified.partition(".")[0])
            files = (self.find_below(base, qualified) for base in bases)
            self._seen[key] = next((file for file in files if file is not None), None)
        return self._seen[key]

    def find_below(self, base: Path, qualified: str) -> Path | None:
        """The file of a module, by its dotted name from a folder on; none of ``"."``."""
        key = base, qualified
        if not qualified.strip("."):
            return None
        if key not in self._found:
            relative = Path(*qualified.split("."))
            places = (base / relative / "__init__.py", (base / relative).with_suffix(".py"))
            self._found[key] = next((place for place in places if place.is_file()), None)
        return self._found[key]

    def tells(self, path: Path, question: Callable[[bytes, str], bool], name: str) -> bool:
        """What the bytes of a file say of a name in it, each asked once."""
        key = question, path, name
        if key not in self._told:
            self._told[key] = question(self._bytes(path), name)
        return self._told[key]

    def _bases(self, seen_from: str, package: str) -> Iterator[Path]:
        """Folders from which a file can import a package: around its own, then the user's roots.

        Where a folder around the file has the package's name, the one that this stands in: not
        every package has an ``__init__.py``.
        """
        yield self._outside(Path(seen_from).parent)
        for root in self.roots:
            yield root if root.is_dir() else root.parent
        for folder in Path(seen_from).parents:
            if folder.name == package:
                yield folder.parent

    def read(self, path: Path) -> bytes:
        """The bytes of a file; raises OSError."""
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError(path)
        if self._rewritten:
            rewritten = self._rewritten.get(os.path.abspath(path))
            if rewritten is not None:
                return rewritten
        return path.read_bytes()

    def content(self, path: Path) -> bytes:
        """The bytes of another file, of any language; empty where it cannot be read."""
        return self._bytes(path)

    def load(self, path: Path) -> ModuleFacts | None:
        """Parse another file of the project; None where it cannot be read."""
        if path in self._modules:
            self._modules[path] = found = self._modules.pop(path)
            return found
        from .module import parse_module

        self._loaded.add(path)
        self._drop_trees(self.max_trees)
        try:
            text = self.read(path).decode("utf-8-sig")
            self._modules[path] = parse_module(text, str(path), self)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            self._modules[path] = None
        return self._modules[path]

    def begin(self) -> None:
        """Let go of what was held for the file that was judged last."""
        self.judged.clear()
        self._drop_trees(self.max_trees_between)
        if len(self._contents) > self.max_contents_between:
            self._contents.clear()

    def _drop_trees(self, most: int) -> None:
        """Keep those asked for last, of no more than so many characters."""
        length = sum(len(each.text) for each in self._modules.values() if each is not None)
        while length > most:
            oldest = self._modules.pop(next(iter(self._modules)))
            length -= len(oldest.text) if oldest is not None else 0

    def parse(self, text: str, path: str) -> ModuleFacts:
        """Parse a file of the run, unless another one has just led to it; raises as ast does."""
        known = self._modules.get(Path(path))
        if known is not None and known.text == text:
            return known
        from .module import parse_module

        return parse_module(text, path, self)

    # -- callers --------------------------------------------------------------------------------

    def calls_of(
        self,
        module: ModuleFacts,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        relevant: Callable[[bytes], object] = bool,
        *,
        elsewhere: bool = False,
        among: Collection[Path] | None = None,
    ) -> Iterator[tuple[ModuleFacts, ast.Call]]:
        """The calls in the project that may run a function, with the files they stand in.

        ``forward`` of a class is called through attributes and names that hold an instance of it.
        Only other files that are relevant by their bytes are looked at, of those around or
        ``among`` others; ``module`` itself is as well, unless ``elsewhere``.
        """
        cls = module.method_class(function)
        through_instance = cls is not None and function.name.startswith(("forward", "__call__"))
        name = cls.name if cls is not None and through_instance else function.name
        word = re.escape(name.encode())
        called = (
            word if cls is None else rb"%s(?<!\w%s)\s*\(" % (word, word)
        )  # a function may be under an alias
        pattern = re.compile(called)
        others = self.others(module, lambda data: pattern.search(data) and relevant(data), among)
        for other in others if elsewhere else chain([module], others):
            if through_instance:
                assert cls is not None
                calls = _calls_of_instances(other, cls.name)
            elif cls is not None:
                named = other.calls_named(name)
                calls = [call for call in named if isinstance(call.func, ast.Attribute)]
            else:
                named = _calls_of_targets(other).get(name, [])
                calls = [c for c in named if self._may_name(module, other, c.func, name)]
            yield from ((other, call) for call in calls)

    def _may_name(
        self, module: ModuleFacts, caller: ModuleFacts, callee: ast.expr, name: str
    ) -> bool:
        """Whether a callee may be the function of this name at the top of a module."""
        targets = caller.names.resolve(callee)
        if any(target.name.rpartition(".")[2] == name for target in targets):
            return not all(self._is_anothers(module, caller, target.name) for target in targets)
        return isinstance(callee, ast.Attribute) and callee.attr == name

    def _is_anothers(self, module: ModuleFacts, caller: ModuleFacts, qualified: str) -> bool:
        """Whether ``kernels.norm`` is not the ``norm`` of this module but made elsewhere."""
        owner, _, name = qualified.rpartition(".")
        if owner == module.module_name:
            return False
        path = self.find_module(caller, owner)
        if path is None:  # of a class in a module, or of a package that is not here
            above = owner.rpartition(".")[0]
            path = self.find_module(caller, above) if above else None
            return path is not None or owner.split(".")[0] != module.module_name.split(".")[0]
        defined = re.compile(rb"^def %s\(" % name.encode(), re.MULTILINE)
        here = path.absolute() == Path(module.path).absolute()
        return not here and defined.search(self._bytes(path)) is not None

    def mentioning(
        self, module: ModuleFacts, *words: str, containing: bytes = b""
    ) -> Iterator[ModuleFacts]:
        """``module``, and the project's other files with one of the words."""
        needles = [word.encode() for word in words]

        def mentions(data: bytes) -> bool:
            return containing in data and any(needle in data for needle in needles)

        return chain([module], self.others(module, mentions))

    def naming(
        self, module: ModuleFacts, words: Collection[str], importing: Set[Path]
    ) -> Iterator[ModuleFacts]:
        """The other files with one of the words that import one of some files, or a package.

        Those ``importing`` are told from are not among them.
        """
        named = rb"\b(?:%s)\b" % b"|".join(re.escape(word.encode()) for word in sorted(words))
        here, search = Path(module.path).absolute(), re.compile(named).search
        for path in self.neighbours(module.path):
            absolute = path.absolute()
            if absolute == here or absolute in importing or not search(self._bytes(path)):
                continue
            imports = self.imports(path)
            if imports & importing or any(i.name == "__init__.py" for i in imports):
                other = self.load(path)
                if other is not None:
                    yield other

    def says(self, module: ModuleFacts, pattern: bytes) -> bool:
        """Whether a regular expression is found in another file around ``module``."""
        return self.some(module, re.compile(pattern).search)

    def some(self, module: ModuleFacts, relevant: Callable[[bytes], object]) -> bool:
        """Whether another file around ``module`` is relevant by its bytes."""
        here = Path(module.path).absolute()
        others = (p for p in self.neighbours(module.path) if p.absolute() != here)
        return any(relevant(self._bytes(path)) for path in others)

    def others(
        self,
        module: ModuleFacts,
        relevant: Callable[[bytes], object],
        among: Collection[Path] | None = None,
    ) -> Iterator[ModuleFacts]:
        """The files around ``module``, or ``among`` others, that are relevant by their bytes."""
        here = Path(module.path).absolute()
        for path in self.neighbours(module.path) if among is None else among:
            if not relevant(self._bytes(path)):
                continue
            if path.absolute() == here:
                continue
            other = self.load(path)
            if other is not None:
                yield other

    def summaries(
        self,
        around: str,
        summarize: Callable[[ModuleFacts], T],
        relevant: Callable[[bytes], object],
    ) -> Iterator[T]:
        """``summarize`` of the files around one that are relevant by their bytes, each asked once.

        A summary holds no tree, so that a big project does not have to be parsed again and again.
        """
        here = Path(around).absolute()
        for path in self.neighbours(around):
            if path.absolute() != here:
                found = self.summary(path, summarize, relevant)
                if found is not None:
                    yield found

    def summary(
        self,
        path: Path,
        summarize: Callable[[ModuleFacts], T],
        relevant: Callable[[bytes], object],
    ) -> T | None:
        """The same of one file; None where it is not relevant or cannot be read."""
        key = summarize, path
        if key not in self._summaries:
            other = self.load(path) if relevant(self._bytes(path)) else None
            self._summaries[key] = None if other is None else summarize(other)
        return cast("T | None", self._summaries[key])

    def keep_summary(self, module: ModuleFacts, summarize: Callable[[ModuleFacts], T]) -> None:
        """Summarize a file of the run while its tree is there, for the files around it."""
        key = summarize, Path(module.path)
        if key not in self._summaries:
            self._summaries[key] = summarize(module)

    def calls_one_of(
        self,
        path: str,
        data: bytes,
        functions: Callable[[ModuleFacts], Iterable[str]],
        relevant: Callable[[bytes], object],
    ) -> bool:
        """Whether a file calls, by its bytes, one of what the files around it are asked for."""
        named = self.summaries(path, functions, relevant)
        return any(b"%s(" % name.encode() in data for names in named for name in names)

    def _bytes(self, path: Path) -> bytes:
        if path not in self._contents:
            self._loaded.add(path)
            if len(self._contents) > self.max_contents:
                self._contents.clear()
            try:
                self._contents[path] = usual(self.read(path))
            except OSError:
                self._contents[path] = b""
        return self._contents[path]

    def relies_on_mutation(
        self, module: ModuleFacts, function: ast.AST, parameter: str, statement: ast.stmt
    ) -> bool:
        """Whether a caller expects its argument to be written, as a statement of the function does.

        It reads that after the call, it passes what outlives the call, or, of a state, it ignores
        the result in which the function hands that back: who holds the state holds the argument.
        """
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        from .relied_on import relied_on

        return parameter in relied_on(module, function, statement)

    def argument(
        self,
        module: ModuleFacts,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        call: ast.Call,
        parameter: str,
    ) -> ast.expr | None:
        """What a call of ``function`` passes for a parameter; None when it is left out."""
        for keyword in call.keywords:
            if keyword.arg == parameter:
                return keyword.value
        names = positional(module, function)
        if parameter in names and names.index(parameter) < len(call.args):
            return call.args[names.index(parameter)]
        return None

    # -- neighbours -----------------------------------------------------------------------------

    def neighbours(self, path: str) -> tuple[Path, ...]:
        """The Python files around one, itself included, that can be expected to know it.

        They are those of its folder, and of the folders above as long as these belong to the same
        package or to the user's roots and hold few enough files to be read for one question.
        """
        folder = Path(path).parent
        if folder in self._neighbours:
            return self._neighbours[folder]
        files: tuple[Path, ...] = (Path(path),)
        current = folder
        while self._belongs(current):
            if current not in self._below:
                self._below[current] = _python_files(current, _MAX_NEIGHBOURS)
            found = self._below[current]
            if found is None:
                break
            files = found
            if current == current.parent:
                break
            current = current.parent
        self._neighbours[folder] = files
        return files

    def far_with(self, word: bytes, path: str) -> tuple[Path, ...]:
        """The files of a package with a rare word that are too far from one to be around it.

        A package that is too big to be read for one question is read for this one once.
        """
        near = self.neighbours(path)
        folder, outside, cut = Path(path).parent, self._outside(Path(path).parent), False
        while folder != outside:
            cut = cut or self._below.get(folder, ()) is None
            if folder.parent == outside:
                break
            folder = folder.parent
        if not cut:
            return ()  # no package, or all of it is around
        if (word, folder) not in self._with:
            files = _python_files(folder, _MAX_PACKAGE) or ()
            self._with[word, folder] = tuple(f for f in files if word in self._bytes(f))
        return tuple(f for f in self._with[word, folder] if f not in near)

    def linked(self, path: str, other: str) -> bool:
        """Whether imports tie two files together: one leads to the other, or a third has both."""
        a, b = Path(path).absolute(), Path(other).absolute()
        if a == b or self._leads_to(a, b) or self._leads_to(b, a):
            return True
        return any(
            {a, b} <= self.imports(each)
            for each in self.neighbours(path)
            if each.name != "__init__.py"
        )

    def _leads_to(self, first: Path, last: Path) -> bool:
        seen, pending = {first}, [first]
        while pending and len(seen) < _MAX_NEIGHBOURS:
            for path in sorted(self.imports(pending.pop()) - seen):
                if path == last:
                    return True
                seen.add(path)
                pending.append(path)
        return False

    def imports(self, path: Path) -> frozenset[Path]:
        """The project's files that a file imports anything from, told by its bytes."""
        if path not in self._imports:
            found: set[Path] = set()
            for base, owner, name, _ in self._imported_names(path, self._bytes(path)):
                file = self._imported_file(path, base, owner, name)
                if file is not None:
                    found.add(file.absolute())
            self._imports[path] = frozenset(found)
        return self._imports[path]

    def imported(self, path: Path, data: bytes | None = None) -> Iterator[tuple[Path, str, str]]:
        """The project's files that a file imports from, or ``data`` in its place.

        With the name of what is taken from there, ``*`` for all and empty for the module itself,
        and the name that the file gives it.
        """
        given = self._bytes(path) if data is None else data
        for base, owner, name, known_as in self._imported_names(path, given):
            file = self._module_file(path, base, owner)
            if name and (file is None or file.name == "__init__.py"):
                inner = self._module_file(path, base, f"{owner}.{name}" if owner else name)
                if inner is not None:
                    file, name = inner, ""
            if file is not None:
                yield file, name, known_as

    def _module_file(self, path: Path, base: Path | None, module: str) -> Path | None:
        return self.find_below(base, module) if base else self.find_file(str(path), module)

    def _imported_file(
        self, path: Path, base: Path | None, owner: str, name: str, depth: int = 0
    ) -> Path | None:
        """The file that one import of a file leads to, past what a package only hands on."""
        full = ".".join(filter(None, (owner, name)))
        for module in filter(None, (full, owner)):
            found = self._module_file(path, base, module)
            if found is None:
                continue
            if module != full and found.name == "__init__.py" and depth < _MAX_HANDED_ON:
                for inner, source, given, known_as in self._imported_names(
                    found, self._bytes(found)
                ):
                    if known_as == name:
                        return self._imported_file(found, inner, source, given, depth + 1) or found
            return found
        return None

    def _imported_names(
        self, path: Path, data: bytes
    ) -> Iterator[tuple[Path | None, str, str, str]]:
        """What a file imports: the folder that a relative name is in, the module, and the name.

        What ``from .layers import norm`` names may be a module, or something in one.  Last comes
        the name by which the file knows it.
        """
        for match in _IMPORT.finditer(data):
            plain, dots, owner, names = (part.decode() for part in match.groups(b""))
            yield from ((None, word, "", "") for word in _DOTTED.findall(plain))
            if len(dots) > len(path.parents):
                continue
            base = path.parents[len(dots) - 1] if dots else None
            for name, known_as in _IMPORTED.findall(_COMMENT.sub("", names)):
                yield base, owner, name, known_as or name

    def _belongs(self, folder: Path) -> bool:
        if (folder / "__init__.py").is_file():
            return True
        absolute = folder.absolute()
        return any(
            root.is_dir() and (absolute == root.absolute() or root.absolute() in absolute.parents)
            for root in self.roots
        )


def _without_place(module: ModuleFacts, target: Target) -> Target:
    """What ``functools.partial`` binds in one file, for another: a constant, or only that it is."""

    def value(node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name):
            found = module.names.visible_at(node.id, module.tree)
            node = found[0].value or node if len(found) == 1 else node
        try:
            known = ast.literal_eval(node)
        except (ValueError, TypeError):
            known = ...
        plain = known is None or isinstance(known, (bool, int, float, str))
        return ast.Constant(known) if plain else ast.Name("_")

    if not target.args and not target.keywords:
        return target
    return Target(
        target.name,
        tuple(map(value, target.args)),
        tuple(ast.keyword(k.arg, value(k.value)) for k in target.keywords),
    )


@once
def _calls_of_targets(module: ModuleFacts) -> dict[str, list[ast.Call]]:
    """The calls of a file by the last name of each thing that is called, aliases resolved."""
    found: dict[str, list[ast.Call]] = {}
    for call in module.calls:
        names = {target.name.rpartition(".")[2] for target in module.names.resolve(call.func)}
        if isinstance(call.func, ast.Attribute):
            names.add(call.func.attr)
        for name in names:
            found.setdefault(name, []).append(call)
    return found


@once
def _calls_of_holders(module: ModuleFacts) -> dict[str, list[tuple[int, ast.Call]]]:
    """The calls by the last name of what holds the callee, an index left out; with their order."""
    found: dict[str, list[tuple[int, ast.Call]]] = {}
    for order, call in enumerate(module.calls):
        node = call.func.value if isinstance(call.func, ast.Subscript) else call.func
        name = getattr(node, "attr", getattr(node, "id", None))
        if name is not None:
            found.setdefault(name, []).append((order, call))
    return found


@once
def _attributes_by_value(module: ModuleFacts) -> dict[ast.expr, list[str]]:
    """The attributes of any class that are set to an expression."""
    found: dict[ast.expr, list[str]] = {}
    for owner in module.classes:
        for name, bindings in module.names.attributes(owner).items():
            for binding in bindings:
                if binding.value is not None:
                    found.setdefault(binding.value, []).append(name)
    return found


def _calls_of_instances(module: ModuleFacts, cls: str) -> list[ast.Call]:
    """The calls of what may hold an instance: it was assigned from ``cls(...)``.

    Also from ``nn.ModuleList([cls(...) for ...])``.
    """
    made = module.calls_named(cls)
    making = {node for call in made for node in (call, *module.ancestors(call))}
    known = _attributes_by_value(module)
    attributes = {n for node in making if isinstance(node, ast.expr) for n in known.get(node, ())}
    stored = {
        node.id
        for call in made
        for node in walk(module.statement(call))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    found: dict[int, ast.Call] = {}
    for name in attributes | stored:
        for order, call in _calls_of_holders(module).get(name, ()):
            node = call.func.value if isinstance(call.func, ast.Subscript) else call.func
            if isinstance(node, ast.Attribute):
                if name in attributes:
                    found[order] = call
            elif isinstance(node, ast.Name):
                if any(binding.value in making for binding in module.names.visible(node)):
                    found[order] = call
    return [found[order] for order in sorted(found)]


def _python_files(folder: Path, most: int) -> tuple[Path, ...] | None:
    """The Python files below a folder, sorted; None where there are too many to read."""
    found: list[Path] = []
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _HIDDEN]
        found += [Path(base, name) for name in names if name.endswith(".py")]
        if len(found) > most:
            return None
    return tuple(sorted(found))


_MAX_NEIGHBOURS = 300
_MAX_PACKAGE = 5000
_IMPORT = re.compile(
    rb"^[ \t]*(?:import[ \t]+([^\n#;]+)"
    rb"|from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]+))",
    re.MULTILINE,
)
_DOTTED = re.compile(r"(?<![\w.])(?<!\bas )[\w.]+")
_IMPORTED = re.compile(r"(?:^|,)[\s(\\]*(\w+|\*)(?:[ \t]+as[ \t]+(\w+))?")
_COMMENT = re.compile(r"#[^\n]*")
_MAX_HANDED_ON = 3
_HIDDEN = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"})
