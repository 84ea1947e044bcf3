"""Fitting new lines into a file as its author would: indentation, width, imports, helpers."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..facts import ModuleFacts
from ..facts.comments import with_comments
from ..facts.walk import walk
from ..findings import Edit

_MIN_WIDTH = 88


class CannotPlace(Exception):
    """There is no clean place for the change; the text says why."""


def width(module: ModuleFacts) -> int:
    """The line length the file keeps to, as far as it shows."""
    return max(_MIN_WIDTH, min(module.longest_line, 100))


def starts_line(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether nothing but white space stands before a statement on its line."""
    line = module.line_text(statement.lineno)
    above = module.line_text(statement.lineno - 1).strip() if statement.lineno > 1 else ""
    if above.endswith("\\") and not above.startswith("#"):
        return False  # the line goes on
    return not line[: module.start(statement) - module.line_starts[statement.lineno - 1]].strip()


def owns_lines(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether no other statement stands on the lines of this one."""
    rest = module.text[module.end(statement) : line_end(module, statement)].strip()
    return starts_line(module, statement) and (not rest or rest.startswith("#"))


@dataclass(frozen=True)
class Room:
    """Where lines can take the place of statements.

    From ``begin`` to ``end``, with ``opening`` before them and ``closing`` behind: line endings
    where other statements share the first line or the last, or where ``if x: y = f(x)`` has its
    block on the line of its head.
    """

    indentation: str
    begin: int
    end: int
    opening: str = ""
    closing: str = ""


def room(module: ModuleFacts, first: ast.stmt, last: ast.stmt) -> Room:
    """The room that statements leave; :class:`CannotPlace` where other code is in the way."""
    block = module.block(first)
    i, j = block.index(first), block.index(last) + 1
    before = block[i - 1] if i and block[i - 1].end_lineno == first.lineno else None
    after = block[j] if j < len(block) and block[j].lineno == last.end_lineno else None
    ind, end, closing = module.indentation(first), line_end(module, last), ""
    if after is not None:
        end = module.start(after)
        _refuse_between(module, last, after)
    elif module.text[module.end(last) : end].strip()[:1] not in ("", "#"):
        raise CannotPlace(_SHARES)
    begin, opening = module.line_starts[first.lineno - 1], ""
    if before is not None:
        _refuse_between(module, before, first)
        begin, opening = module.end(before), module.newline
    head = first
    while i and block[i - 1].end_lineno == head.lineno:
        i -= 1
        head = block[i]
    if not starts_line(module, head):
        begin = module.line_starts[head.lineno - 1]
        line = module.text[begin : module.start(head)].rstrip()
        owner = module.parent(head)
        if not line.endswith(":") or not isinstance(owner, (ast.stmt, ast.ExceptHandler)):
            raise CannotPlace(_SHARES)
        if head.lineno != first.lineno:
            raise CannotPlace(_SHARES)
        line_of_owner = module.line_text(owner.lineno)
        outer = line_of_owner[: len(line_of_owner) - len(line_of_owner.lstrip(" \t\f"))]
        ind, begin, opening = outer + module.indent_unit, begin + len(line), module.newline
        if before is not None:
            earlier = module.text[module.start(head) : module.end(before)]
            opening += f"{ind}{earlier}{module.newline}"
    if after is not None:
        closing = module.newline + ind
    return Room(ind, begin, end, opening, closing)


_SHARES = "it shares its line with other code"


def _refuse_between(module: ModuleFacts, first: ast.stmt, then: ast.stmt) -> None:
    """Raise where two statements on one line are not apart by a semicolon alone."""
    if module.text[module.end(first) : module.start(then)].strip() != ";":
        raise CannotPlace(_SHARES)


def moved(
    module: ModuleFacts, first: ast.stmt, last: ast.stmt, room: Room, indentation: str
) -> str:
    """The statements of a room, with the comment after them, on lines that begin with this."""
    assert last.end_lineno is not None
    end = module.end(last) if room.closing else room.end
    text = module.text[module.start(first) : end]
    if last.end_lineno == first.lineno:
        return indentation + text
    if room.closing:
        raise CannotPlace(_SHARES)
    line = module.line_text(first.lineno).rstrip("\r\n")
    outer = line[: len(line) - len(line.lstrip(" \t\f"))]
    rest = indent(module, first.lineno + 1, last.end_lineno, indentation.removeprefix(outer))
    return f"{indentation}{text.splitlines()[0]}{module.newline}{rest}"


def line_start(module: ModuleFacts, statement: ast.stmt) -> int:
    """Offset of the first line of a statement, decorators included."""
    line = statement.lineno
    for decorator in getattr(statement, "decorator_list", ()):
        line = min(line, decorator.lineno)
    return module.line_starts[line - 1]


def line_end(module: ModuleFacts, statement: ast.stmt) -> int:
    """Offset of the end of a statement's last line, before the line ending."""
    assert statement.end_lineno is not None
    line = module.line_text(statement.end_lineno)
    return module.line_starts[statement.end_lineno - 1] + len(line.rstrip("\r\n"))


def is_commented(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a comment stands in the lines of a statement, or above them."""
    lines = module.text[line_start(module, statement) : line_end(module, statement)]
    above = module.line_text(statement.lineno - 1) if statement.lineno > 1 else ""
    return "#" in lines or above.lstrip().startswith("#")


def indent_edits(module: ModuleFacts, first: int, last: int, unit: str) -> list[Edit]:
    """Insertions that push the lines ``first`` to ``last`` one level in.

    Lines that begin inside a string literal keep their text: it is data.
    """
    inside = module.string_lines(first, last)
    return [
        Edit(module.line_starts[line - 1], module.line_starts[line - 1], unit)
        for line in range(first, last + 1)
        if line not in inside and module.line_text(line).strip()
    ]


def dedent_edits(module: ModuleFacts, first: int, last: int, unit: str) -> list[Edit]:
    """Deletions that pull the lines ``first`` to ``last`` one level out."""
    inside = module.string_lines(first, last)
    edits = []
    for line in range(first, last + 1):
        if line not in inside and module.line_text(line).startswith(unit):
            start = module.line_starts[line - 1]
            edits.append(Edit(start, start + len(unit), ""))
    return edits


def indent(module: ModuleFacts, first: int, last: int, unit: str) -> str:
    """The lines ``first`` to ``last`` one level deeper, without the last line ending."""
    start = module.line_starts[first - 1]
    end = module.line_starts[last] if last < len(module.line_starts) else len(module.text)
    pieces, position = [], start
    for edit in indent_edits(module, first, last, unit):
        pieces += [module.text[position : edit.start], edit.text]
        position = edit.start
    return "".join([*pieces, module.text[position:end]]).rstrip("\r\n")


# -- wrapping -----------------------------------------------------------------------------------


def fit(line: str, indentation: str, unit: str, limit: int) -> list[str]:
    """Break one statement over several lines where it is too long, one argument a line at worst."""
    if len(indentation) + len(line) <= limit or "\n" in line:  # a string over several lines
        return [indentation + line]
    start = _bare_tuple(line)
    if start:
        line = f"{line[:start]}({line[start:]})"
    opening = start or _bracket_to_break(line, limit - len(indentation))
    inner = indentation + unit
    if not start:
        head, *operands = _operands(line)
        fits = opening is not None and _ends_fit(line, opening, limit - len(indentation))
        last = opening is not None and _matching(line, opening) == len(line) - 1
        if len(operands) > (2 if fits else 1) and not (fits and last):
            lines = [each for operand in operands for each in fit(operand, inner, unit, limit)]
            return [f"{indentation}{head}(", *lines, f"{indentation})"]
    if opening is None:
        return [indentation + line]
    closing = _matching(line, opening)
    body = line[opening + 1 : closing]
    head, tail = line[: opening + 1], line[closing:]
    if len(inner) + len(body) <= limit and not body.startswith("*") and not start:
        return [indentation + head, inner + body, indentation + tail]
    lines = []
    for words in _CLAUSES:
        clauses = _split_words(body, words)
        if len(clauses) > 1:
            for clause in clauses:
                lines += fit(clause, inner, unit, limit)
            return [indentation + head, *lines, indentation + tail]
    parts = _split_commas(body)
    for part in parts:
        comma = "," if len(parts) > 1 or line[opening] != "(" else ""
        lines += fit(part + comma, inner, unit, limit)
    return [indentation + head, *lines, indentation + tail]


_CLAUSES = (("for", "if"), ("or",), ("and",))
"""Words at which what has no commas of its own is broken, outermost first."""


def _bare_tuple(line: str) -> int | None:
    """Where the value begins in ``a, b = x, y``, which needs parentheses to be broken."""
    equals = re.match(r"[\w., ]+ = |return ", line)
    if equals is None or len(_split_commas(line[equals.end() :])) < 2:
        return None
    return equals.end()


def _brackets(line: str) -> list[tuple[int, int]]:
    """(opening, closing) of the outermost brackets, strings skipped."""
    pairs, stack, quote, i = [], [], "", 0
    while i < len(line):
        char = line[i]
        if quote:
            if char == "\\":
                i += 1
            elif char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        elif char in "([{":
            stack.append(i)
        elif char in ")]}":
            start = stack.pop()
            if not stack:
                pairs.append((start, i))
        i += 1
    return pairs


def _bracket_to_break(line: str, limit: int) -> int | None:
    """The outermost bracket that holds most, of those that leave both ends of the line fitting."""
    filled = [(start, end) for start, end in _brackets(line) if end - start > 1]
    fitting = [(a, b) for a, b in filled if _ends_fit(line, a, limit)]
    candidates = fitting or filled[-1:]
    return max(candidates, key=lambda pair: pair[1] - pair[0])[0] if candidates else None


def _ends_fit(line: str, opening: int, limit: int) -> bool:
    """Whether what stands outside of a bracket fits on a line each."""
    return opening < limit and len(line) - _matching(line, opening) <= limit


def operand(module: ModuleFacts, node: ast.expr) -> str:
    """The text of an expression as an operand, in parentheses where it needs them."""
    text = module.source(node)
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)):
        return text
    return f"({text})"


def _operands(line: str) -> list[str]:
    """``x = `` and the operands of the value, each but the first with its operator before it."""
    equals = re.match(r"[\w., ]+ = |return ", line)
    if equals is None:
        return [line]
    value = line[equals.end() :]
    spans = _brackets(value)
    for operators in ("+-", "*/@"):
        cuts = [
            match.start() + 1
            for match in re.finditer(rf" [{operators}] ", value)
            if not any(a < match.start() < b for a, b in spans)
            and not _in_string(value, match.start())
        ]
        if cuts and not re.search(r" (if|for|and|or|not|in|is|[<>=!]+) ", _outside(value, spans)):
            ends = [*cuts, len(value)]
            return [equals[0], *(value[a:b].strip() for a, b in zip([0, *cuts], ends, strict=True))]
    return [line]


def _outside(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text without what stands in brackets."""
    pieces, position = [], 0
    for start, end in spans:
        pieces.append(text[position : start + 1])
        position = end
    return "".join([*pieces, text[position:]])


def _matching(line: str, opening: int) -> int:
    return next(b for a, b in _brackets(line) if a == opening)


def _split_commas(body: str) -> list[str]:
    spans = _brackets(body)
    cuts = [
        i
        for i, char in enumerate(body)
        if char == "," and not any(a < i < b for a, b in spans) and not _in_string(body, i)
    ]
    parts = [body[a + 1 : b].strip() for a, b in zip([-1, *cuts], [*cuts, len(body)], strict=True)]
    return [part for part in parts if part]


def _split_words(body: str, words: Sequence[str]) -> list[str]:
    """Pieces that begin with one of the words, those in brackets and strings left alone."""
    spans = _brackets(body)
    if words[0] != "for" and len(_split_commas(body)) > 1:
        return [body]
    cuts = [
        match.start()
        for match in re.finditer(rf"(?<=\s)(?:{'|'.join(words)})(?=\s)", body)
        if not any(a < match.start() < b for a, b in spans) and not _in_string(body, match.start())
    ]
    if words[0] == "for" and not any(body.startswith("for ", cut) for cut in cuts):
        return [body]  # a conditional expression
    first = next((cut for cut in cuts if body.startswith("for ", cut)), 0)
    cuts = [cut for cut in cuts if cut >= first]
    return [body[i:j].strip() for i, j in zip([0, *cuts], [*cuts, len(body)], strict=True)]


def _in_string(text: str, position: int) -> bool:
    quote, i = "", 0
    while i < position:
        char = text[i]
        if quote:
            if char == "\\":
                i += 1
            elif char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        i += 1
    return bool(quote)


# -- module level -------------------------------------------------------------------------------


def _top_level_imports(module: ModuleFacts) -> list[ast.stmt]:
    """The import statements that stand at the top of the file, before anything else."""
    found: list[ast.stmt] = []
    for i, node in enumerate(module.tree.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(node)
        elif i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            break
    return found


def bound_at_top(module: ModuleFacts, qualified: str) -> str | None:
    """The module-level name under which something is imported, visible everywhere in the file."""
    for name, bindings in module.names.bindings(module.tree).items():
        if bindings[-1].qualified == qualified:
            if bindings[-1].always or _needed_on_import(module, name):
                return name
    return None


def _needed_on_import(module: ModuleFacts, name: str) -> bool:
    """Whether a file that imports something under a condition is of no use without it.

    ``class Norm(torch.nn.Module)`` at the top says so of ``torch``.
    """
    return any(
        isinstance(node, ast.Name) and node.id == name
        for statement in module.tree.body
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for part in (*statement.decorator_list, *getattr(statement, "bases", ()))
        for node in walk(part)
    )


def is_taken(module: ModuleFacts, name: str) -> bool:
    """Whether any code of the file uses a name (as a variable, a function, an import)."""
    return name in module.identifiers


def import_edit(module: ModuleFacts, line: str) -> Edit:
    """Insert an import: after the last import of torch, else where one from outside belongs."""
    imports = _top_level_imports(module)
    torch_imports = _imports_torch(imports)
    own = [node for node in imports if _is_own(module, node)]
    outside = [node for node in imports if node not in own]
    if own and own[0] is imports[0] and not torch_imports:
        offset = line_start(module, own[0])
        if not offset:
            return Edit(offset, offset, line + module.newline)
        offset -= len(module.newline)  # so that what parts them from the file's own comes after
        return Edit(offset, offset, module.newline + line)
    after = (torch_imports or [n for n in outside if not _is_future(n)] or imports)[-1:]
    if after:
        offset = line_end(module, after[0])
        return Edit(offset, offset, module.newline + line)
    first = module.tree.body[0]
    if ast.get_docstring(module.tree, clean=False) is not None:
        offset = line_end(module, first)
        return Edit(offset, offset, f"{module.newline}{module.newline}{line}")
    offset = line_start(module, first)
    return Edit(offset, offset, line + module.newline)


def _imports_torch(imports: Sequence[ast.stmt]) -> list[ast.stmt]:
    return [
        node
        for node in imports
        if isinstance(node, ast.Import) and node.names[0].name.partition(".")[0] == "torch"
    ]


def import_gap(module: ModuleFacts) -> list[Edit]:
    """The blank line between imports that are inserted and the file's own, which come first."""
    imports = _top_level_imports(module)
    if not imports or not _is_own(module, imports[0]) or _imports_torch(imports):
        return []
    offset = line_start(module, imports[0])
    return [Edit(offset, offset, module.newline)]


def _is_own(module: ModuleFacts, node: ast.stmt) -> bool:
    """Whether something of the file's own package is imported."""
    if isinstance(node, ast.ImportFrom):
        package = (node.module or "").partition(".")[0]
        return bool(node.level) or package == module.module_name.partition(".")[0]
    return False


def imports(module: ModuleFacts, name: str) -> bool:
    """Whether the file imports a module so that it can be named in full: ``import a.b``.

    Raises :class:`CannotPlace` where it has the first name for something else.
    """
    root = name.partition(".")[0]
    if is_taken(module, root) and bound_at_top(module, root) != root:
        raise CannotPlace(f"the file has the name `{root}` for something else")
    return any(
        alias.name == name and alias.asname is None
        for node in _top_level_imports(module)
        if isinstance(node, ast.Import)
        for alias in node.names
    )


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def helper_edit(module: ModuleFacts, text: str) -> Edit:
    """Insert a helper function before the first class or function and the comments above it."""
    newline = module.newline
    body = text.strip("\n").replace("\n", newline)
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            line = with_comments(module, module.position(line_start(module, node))[0])
            offset = module.line_starts[line - 1]
            return Edit(offset, offset, f"{body}{newline}{newline}{newline}")
    imports = [n for n in module.tree.body if isinstance(n, (ast.Import, ast.ImportFrom, ast.Try))]
    if not imports:
        raise CannotPlace("the file has no imports to put a helper function after")
    offset = line_end(module, imports[-1])
    return Edit(offset, offset, f"{newline}{newline}{newline}{body}{newline}")


def functions_at_top(module: ModuleFacts) -> dict[str, ast.FunctionDef]:
    """Module-level functions by name, for finding a helper that is already there."""
    return {node.name: node for node in module.tree.body if isinstance(node, ast.FunctionDef)}
