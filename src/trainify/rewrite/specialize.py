"""The reference functions as one file needs them.

A reference function covers every option of every kernel.  A file passes literals for most of them:
they are written into the function, which then loses parameters, branches and often whole functions
below it.  There is one text per function and file, so what counts as literal is what all calls in
the file agree on (:class:`Library`).  What has become short straight-line code is not inserted at
all but stands at the call.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

import libcst as cst

from ..facts.names import is_none
from ..facts.parsed import parsed
from ..facts.walk import walk
from .expressions import Substitute, bare, code, expression, one_line
from .fold import body_of, fold, used_parameters
from .fold.blocks import leading, lines_of
from .fold.expressions import fold_expression
from .fold.values import GIVEN, Known, given_names, is_given, is_literal, literal
from .layout import fit
from .older_python import quoted, without_strict
from .older_torch import NAMES as OLDER
from .older_torch import for_release

_MAX_INLINE_STATEMENTS = 3
_MAX_INLINE_WIDTH = 160
_LATER = (ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Reference:
    """One function of :mod:`trainify.reference`, as text: as it is there, or specialized."""

    name: str
    node: cst.FunctionDef
    tree: ast.FunctionDef
    siblings: frozenset[str]
    taken: frozenset[str] = frozenset()
    """Parameters that are gone because they are True."""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        return tuple(a.arg for a in self.tree.args.args)

    @cached_property
    def defaults(self) -> dict[str, str]:
        values = self.tree.args.defaults
        names = self.parameters[len(self.parameters) - len(values) :]
        return {name: ast.unparse(value) for name, value in zip(names, values, strict=True)}

    @cached_property
    def lines(self) -> list[str]:
        """Its text, as ``tree`` counts lines from its own first one."""
        return code(cst.Module([self.node])).lstrip("\n").split("\n")

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The statements after the docstring."""
        return self.tree.body[1:] if ast.get_docstring(self.tree) else self.tree.body

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """Functions that this one calls: of the same module, or those for an older PyTorch."""
        names = [n.id for n in walk(self.tree) if isinstance(n, ast.Name)]
        return tuple(dict.fromkeys(n for n in names if n in self.siblings and n != self.name))

    @cached_property
    def inline(self) -> bool:
        """Whether the body is short straight-line code that can stand in the user's function."""
        *statements, last = self.body
        return (
            isinstance(last, ast.Return)
            and len(statements) <= _MAX_INLINE_STATEMENTS
            and all(isinstance(s, ast.Assign) and len(s.targets) == 1 for s in statements)
            and not any(isinstance(n, _LATER) for n in walk(self.tree))
        )

    @cached_property
    def value(self) -> cst.BaseExpression | None:
        """The expression that is all of the body, if it is short enough to stand in another."""
        (*statements, last) = body_of(self.node)
        if statements or not self.inline or not isinstance(last, cst.SimpleStatementLine):
            return None
        (result,) = last.body
        assert isinstance(result, cst.Return)
        short = result.value is not None and len(one_line(code(result.value))) <= _MAX_INLINE_WIDTH
        return result.value if short else None

    def with_node(self, node: cst.FunctionDef, known: Known | None = None) -> Reference:
        """The function with another text, for what is known of its parameters."""
        (tree,) = ast.parse(code(node)).body
        assert isinstance(tree, ast.FunctionDef)
        true = {name for name, value in (known or {}).items() if literal(value) is True}
        return Reference(self.name, node, tree, self.siblings, self.taken | true)


@cache
def reference(name: str) -> Reference | None:
    """The reference function of this name, read without importing torch."""
    path = paths().get(name)
    return _parse(path).get(name) if path is not None else None


def is_none_result(function: Reference, index: int) -> bool:
    """Whether a function gives None as this one of several results."""
    last = function.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    elements = value.elts if isinstance(value, ast.Tuple) else []
    return index < len(elements) and is_none(elements[index])


@cache
def paths() -> dict[str, Path]:
    """The file in which each reference function stands."""
    spec = importlib.util.find_spec("trainify.reference")
    assert spec is not None and spec.origin is not None
    found: dict[str, Path] = {}
    for path in sorted(Path(spec.origin).parent.glob("*.py")):
        for match in re.finditer(r"^def (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(match[1], path)
    return found


@cache
def _parse(path: Path) -> dict[str, Reference]:
    text = path.read_text(encoding="utf-8")
    trees = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    nodes = {n.name.value: n for n in cst.parse_module(text).body if isinstance(n, cst.FunctionDef)}
    siblings = frozenset((*trees, *OLDER))
    return {name: Reference(name, nodes[name], trees[name], siblings) for name in trees}


@cache
def with_callees(name: str) -> tuple[str, ...]:
    """A reference function after all those it calls, themselves in that order."""
    function = reference(name)
    assert function is not None
    order: dict[str, None] = {}
    for other in function.calls:
        order.update(dict.fromkeys(with_callees(other)))
    return (*order, name)


# -- calls --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Use:
    """An equivalent where it is used: an expression over reference functions, and what is known.

    ``literals`` are the names in it that stand for literals, ``sure`` those that surely do not
    stand for None.  ``late`` says that no statement can stand before it, ``whole`` that the body of
    the function it calls is to stand in its place, however long it is.
    """

    value: str
    literals: tuple[tuple[str, str], ...] = ()
    sure: frozenset[str] = frozenset()
    late: bool = False
    whole: bool = False

    @classmethod
    def of(
        cls,
        value: str,
        texts: Mapping[str, str],
        sure: AbstractSet[str] = frozenset(),
        late: bool = False,
        whole: bool = False,
    ) -> Use:
        """For arguments as they are written; ``sure`` are those that cannot be None."""
        nodes = {name: expression(text) for name, text in texts.items()}
        literals = [(name, code(bare(node))) for name, node in nodes.items() if is_literal(node)]
        given = {name for name, node in nodes.items() if name in sure or is_given(node)}
        return cls(value, tuple(literals), frozenset(given), late, whole)

    @cached_property
    def known(self) -> Known:
        return {
            **dict.fromkeys(self.sure, GIVEN),
            **{name: cst.parse_expression(text) for name, text in self.literals},
        }


def _bind(function: Reference, call: cst.Call) -> dict[str, cst.Arg] | None:
    """Arguments by parameter, or None where the call unpacks something."""
    bound: dict[str, cst.Arg] = {}
    for position, argument in enumerate(call.args):
        if argument.star:
            return None
        name = argument.keyword.value if argument.keyword else function.parameters[position]
        bound[name] = argument
    return bound


def _known(function: Reference, call: cst.Call, given: AbstractSet[str]) -> Known:
    """What a call says of the parameters; ``given`` are the names that are not None there."""
    bound = _bind(function, call)
    if bound is None:
        return {}
    known: dict[str, cst.BaseExpression] = {}
    for name in function.parameters:
        argument = bound.get(name)
        node = expression(function.defaults[name]) if argument is None else argument.value
        if is_literal(node):
            known[name] = bare(node)
        elif is_given(node) or (isinstance(node, cst.Name) and node.value in given):
            known[name] = GIVEN
    return known


def _calls(node: cst.CSTNode, given: AbstractSet[str]) -> list[tuple[Reference, Known]]:
    """The calls of reference functions in a piece of code, inner ones first."""
    found: list[tuple[Reference, Known]] = []

    class Visit(cst.CSTVisitor):
        def leave_Call(self, original_node: cst.Call) -> None:
            function = _called(original_node)
            if function is not None:
                found.append((function, _known(function, original_node, given)))

    node.visit(Visit())
    return found


def _called(node: cst.BaseExpression) -> Reference | None:
    """The reference function that an expression calls."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        return reference(node.func.value)
    return None


def _agreed(calls: Sequence[Known]) -> Known:
    """What several calls agree on."""
    first, *rest = calls
    agreed: dict[str, cst.BaseExpression] = {}
    for name, value in first.items():
        others = [other.get(name) for other in rest]
        if all(other is not None and _same(other, value) for other in others):
            agreed[name] = value
        elif all(other is not None and code(other) != "None" for other in (value, *others)):
            agreed[name] = GIVEN
    return agreed


def _same(a: cst.BaseExpression, b: cst.BaseExpression) -> bool:
    if a is GIVEN or b is GIVEN:
        return a is b
    return repr(literal(a)) == repr(literal(b))  # 1, 1.0 and True are not the same


class _Calls(cst.CSTTransformer):
    """Writes calls of reference functions as their specialized forms want them."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self.library = library

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        original = _called(updated_node)
        bound = _bind(original, updated_node) if original is not None else None
        if original is None or bound is None:
            return updated_node
        function = self.library.functions[original.name]
        values = {
            name: bound[name].value if name in bound else expression(original.defaults[name])
            for name in function.parameters
        }
        if function.value is not None:
            reads = Counter(n.id for n in walk(function.tree) if isinstance(n, ast.Name))
            if all(reads[name] == 1 or is_simple(code(v)) for name, v in values.items()):
                result = function.value.visit(Substitute(values))
                assert isinstance(result, cst.BaseExpression)
                return result
        arguments: list[cst.Arg] = []
        for name, value in values.items():
            named = (
                name not in bound
                or bound[name].keyword is not None
                or bool(arguments and arguments[-1].keyword)
            )
            arguments.append(_argument(value, name if named else None))
        return updated_node.with_changes(args=arguments)


def _argument(value: cst.BaseExpression, name: str | None) -> cst.Arg:
    if name is None:
        return cst.Arg(value)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(name), equal=equal)


def is_simple(text: str) -> bool:
    """Whether reading an expression twice costs nothing and says nothing new."""
    node = parsed(text)
    while isinstance(node, ast.Attribute):
        node = node.value
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, (ast.Name, ast.Constant))


# -- the library of a file ----------------------------------------------------------------------


@lru_cache(1024)
def _fold(
    name: str, known: tuple[tuple[str, str], ...], lacking: tuple[str, ...] = ()
) -> Reference:
    """A reference function for what is known of its parameters, without what is ``lacking``."""
    original = reference(name)
    assert original is not None
    facts = {
        name: GIVEN if text == code(GIVEN) else cst.parse_expression(text) for name, text in known
    }
    node = fold(without_strict(for_release(original.node, lacking), lacking), facts)
    meant = node.visit(_Meant())
    if meant is not node:
        assert isinstance(meant, cst.FunctionDef)
        node = fold(meant, {name: value for name, value in facts.items() if value is GIVEN})
    return original.with_node(node, facts)


class _Meant(cst.CSTTransformer):
    """Drops a branch that only passes None for what has to be a tensor: it could only raise."""

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If | cst.RemovalSentinel:
        otherwise = updated_node.orelse
        if isinstance(otherwise, cst.Else) or not _only_raises(lines_of(updated_node)):
            return updated_node
        return cst.RemoveFromParent() if otherwise is None else otherwise


def _only_raises(body: Sequence[cst.BaseStatement]) -> bool:
    if len(body) != 1 or not isinstance(body[0], cst.SimpleStatementLine):
        return False
    returned = body[0].body[0]
    if not isinstance(returned, cst.Return) or not isinstance(returned.value, cst.Call):
        return False
    function = _called(returned.value)
    bound = None if function is None else _bind(function, returned.value)
    if function is None or bound is None:
        return False
    tensors = {
        p.name.value
        for p in function.node.params.params
        if p.annotation is not None and code(p.annotation.annotation) == "torch.Tensor"
    }
    return any(name in tensors and code(a.value) == "None" for name, a in bound.items())


class Library:
    """The reference functions that some uses need, specialized to what all uses agree on.

    ``keep`` names parameters, by function, that are to stay although all uses agree on them;
    without ``sure`` nothing is taken as not None; ``lacking`` is what the project's PyTorch and
    Python lack (:mod:`.older_torch`, :mod:`.older_python`).  Ask :func:`library` for one: editors
    ask again and again.
    """

    def __init__(
        self,
        uses: Sequence[Use] = (),
        keep: Mapping[str, AbstractSet[str]] | None = None,
        sure: bool = True,
        lacking: tuple[str, ...] = (),
    ) -> None:
        self.functions: dict[str, Reference] = {}
        """By name, callees first."""
        self._sure = sure
        self._lacking = lacking
        self._resolved: dict[Use, tuple[cst.BaseExpression, Reference | None]] = {}
        self._standing = {top.name for use in uses if (top := self._standing_for(use)) is not None}
        demands: dict[str, list[Known]] = {}

        def demand(node: cst.CSTNode, known: Known) -> None:
            for function, facts in _calls(node, given_names(node, known)):
                demands.setdefault(function.name, []).append(facts)

        for use in uses:
            known = self._believed(use.known)
            node = fold_expression(cst.parse_expression(use.value), known)
            top = _called(node)
            if top is None:
                demand(node, known)
                continue
            assert isinstance(node, cst.Call)
            for argument in node.args:
                demand(argument.value, known)
            facts = _known(top, node, given_names(node, known))
            body = self._folded(top, facts)
            inline = self._is_inline(use, body)
            if inline:
                demand(body.node, facts)
            if not inline or use.late:
                demands.setdefault(top.name, []).append(facts)

        order = dict.fromkeys([*OLDER, *(n for name in demands for n in with_callees(name))])
        folded: dict[str, tuple[Reference, Known]] = {}
        for name in reversed(order):
            if name in demands:
                original = reference(name)
                assert original is not None
                stays = (keep or {}).get(name, frozenset())
                facts = {k: v for k, v in _agreed(demands[name]).items() if k not in stays}
                folded[name] = self._folded(original, facts), facts
                demand(folded[name][0].node, facts)
        for name in order:
            if name in folded:
                self.functions[name] = self._finished(*folded[name])

    def _standing_for(self, use: Use) -> Reference | None:
        """The function that has to stand in the file for a use, whatever the others need."""
        known = self._believed(use.known)
        node = fold_expression(cst.parse_expression(use.value), known)
        top = _called(node)
        if top is None or use.whole:
            return None
        assert isinstance(node, cst.Call)
        body = self._folded(top, _known(top, node, given_names(node, known)))
        return None if body.inline else top

    def _is_inline(self, use: Use, body: Reference) -> bool:
        """Whether a body is written at the call: a function that is there anyway is called."""
        short = body.inline and (len(body.body) == 1 or body.name not in self._standing)
        return short or use.whole

    def _believed(self, known: Known) -> Known:
        return {k: v for k, v in known.items() if self._sure or v is not GIVEN}

    def _folded(self, function: Reference, known: Known) -> Reference:
        facts = self._believed(known)
        known_texts = tuple((name, code(value)) for name, value in facts.items())
        return _fold(function.name, known_texts, self._lacking)

    def _finished(self, function: Reference, known: Known) -> Reference:
        """A folded function with its calls written as those functions want them."""
        if not function.calls:
            return function.with_node(used_parameters(function.node))
        node = function.node.visit(_Calls(self))
        assert isinstance(node, cst.FunctionDef)
        given = {k: v for k, v in self._believed(known).items() if v is GIVEN}
        return function.with_node(used_parameters(fold(node, given)))

    def resolve(self, use: Use) -> tuple[cst.BaseExpression, Reference | None]:
        """A use as it is to be written: its expression, and the function that it calls outermost.

        That function is one that is to stand in the file, or, if it is ``inline``, one whose body
        can stand in place of the call.
        """
        if use not in self._resolved:
            self._resolved[use] = self._resolve(use)
        return self._resolved[use]

    def _resolve(self, use: Use) -> tuple[cst.BaseExpression, Reference | None]:
        known = self._believed(use.known)
        node = fold_expression(cst.parse_expression(use.value), known)
        top = _called(node)
        if top is None:
            rewritten = node.visit(_Calls(self))
            assert isinstance(rewritten, cst.BaseExpression)
            return rewritten, None
        assert isinstance(node, cst.Call)
        facts = _known(top, node, given_names(node, known))
        arguments = [a.with_changes(value=a.value.visit(_Calls(self))) for a in node.args]
        body = self._folded(top, facts)
        inline = self._is_inline(use, body)
        function = self._finished(body, facts) if inline else self.functions[top.name]
        return node.with_changes(args=arguments), function

    def closure(self, names: Iterable[str]) -> tuple[str, ...]:
        """The functions that must stand in the file for these to work, callees first."""
        needed = set(names)
        for name in reversed(self.functions):
            if name in needed:
                needed.update(self.functions[name].calls)
        return tuple(name for name in self.functions if name in needed)


@lru_cache(256)
def library(
    uses: tuple[Use, ...] = (),
    keep: tuple[tuple[str, frozenset[str]], ...] = (),
    sure: bool = True,
    lacking: tuple[str, ...] = (),
) -> Library:
    """The library for these uses, which is made once."""
    return Library(uses, dict(keep), sure, lacking)


# -- text ---------------------------------------------------------------------------------------


@lru_cache(1024)
def helper_text(
    function: Reference,
    *,
    torch: str,
    functional: str,
    helper_names: tuple[tuple[str, str], ...],
    unit: str,
    width: int,
    older: tuple[tuple[str, str], ...] = (),
    lacking: tuple[str, ...] = (),
) -> str:
    """The text of a helper function as it stands in the user's file.

    ``older`` has the file's names for ``Optional`` and ``Tuple``, where it writes types with them;
    ``lacking`` is what types cannot be written with (:mod:`.older_python`).
    """
    node = renamed(function, (("torch", torch), ("F", functional), *helper_names))
    head = one_line(code(node.with_changes(body=_PASS, leading_lines=[], decorators=[])))
    typing = dict(older)
    if "Optional" in typing:
        # A union of several is quoted: it needs no name that the file may not have.
        head = _OR_NONE.sub(
            lambda m: f'"{m[0]}"' if m["others"] else f"{typing['Optional']}[{m['last']}]", head
        )
    if "Tuple" in typing:
        head = re.sub(r"\btuple\[", f"{typing['Tuple']}[", head)
    lines = fit(quoted(head, lacking).removesuffix(" pass"), "", unit, width)
    lines += _docstring(function, unit, width)
    for statement in body_of(node):
        lines += lay_out(statement, unit, unit, width)
    return "\n".join(lines) + "\n"


@lru_cache(1024)
def renamed(function: Reference, texts: tuple[tuple[str, str], ...]) -> cst.FunctionDef:
    """A function with expressions in place of names."""
    mapping = {name: expression(text) for name, text in texts}
    return cst.ensure_type(function.node.visit(Substitute(mapping)), cst.FunctionDef)


_OR_NONE = re.compile(
    r"(?P<others>(?:[\w.]+(?:\[[\w., ]*\])? \| )*)(?P<last>[\w.]+(?:\[[\w., ]*\])?) \| None"
)
_PASS = cst.SimpleStatementSuite([cst.Pass()])
_END = cst.TrailingWhitespace()


def _docstring(function: Reference, unit: str, width: int) -> list[str]:
    """The summary of a docstring and what it says of the options taken, as far as it is still true.

    A sentence that names a parameter which is gone stays only where that was taken to be True.
    """
    original = reference(function.name)
    assert original is not None
    summary, _, rest = (ast.get_docstring(original.tree) or "").partition("\n\n")
    gone = set(original.parameters) - set(function.parameters) - function.taken
    told = _sentences(summary)
    told += [s for s in _sentences(rest) if any(_names(s, name) for name in function.taken)]
    told = [s for s in told if not any(_names(s, name) for name in gone)]
    if not told:
        return []
    room = width - len(unit)
    paragraphs = [told[0], " ".join(told[1:])] if len(told) > 1 else told
    if len(paragraphs) == 1 and len(paragraphs[0]) + 6 <= room:
        return [f'{unit}"""{paragraphs[0]}"""']
    lines = textwrap.wrap('"""' + paragraphs[0], room - 3)  # one line would end in the quotes
    for paragraph in paragraphs[1:]:
        lines += ["", *textwrap.wrap(paragraph, room)]
    return [(unit + line).rstrip() for line in (*lines, '"""')]


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.])\s+(?=[A-Z])", " ".join(text.split())) if text.strip() else []


def _names(sentence: str, parameter: str) -> bool:
    return re.search(rf"\b{parameter}\b", sentence, re.IGNORECASE) is not None


@lru_cache(4096)
def lay_out(statement: cst.BaseStatement, indent: str, unit: str, width: int) -> tuple[str, ...]:
    """The lines of a statement, wrapped anew: it may have become shorter or longer."""
    return tuple(_laid_out(statement, indent, unit, width))


def _laid_out(statement: cst.BaseStatement, indent: str, unit: str, width: int) -> list[str]:
    lines: list[str] = []
    for empty in leading(statement):
        if empty.comment is not None:
            lines += _comment(empty.comment, indent, width)
    if isinstance(statement, cst.SimpleStatementLine):
        alone = statement.with_changes(leading_lines=[], trailing_whitespace=_END)
        text = code(cst.Module([alone]))
        return lines + _commented(text, statement.trailing_whitespace, indent, unit, width)
    if isinstance(statement, (cst.If, cst.For, cst.While)):
        body = statement.body
        if isinstance(body, cst.IndentedBlock):
            bald = statement.with_changes(body=_PASS, orelse=None, leading_lines=[])
            head = one_line(code(bald)).removesuffix(" pass")
            lines += _commented(head, body.header, indent, unit, width)
            for inner in body.body:
                lines += lay_out(inner, indent + unit, unit, width)
            orelse = statement.orelse
            if isinstance(orelse, cst.If):
                first, *rest = lay_out(orelse, indent, unit, width)
                return [*lines, f"{indent}el{first.lstrip()}", *rest]
            if orelse is not None and isinstance(orelse.body, cst.IndentedBlock):
                lines += _commented("else:", orelse.body.header, indent, unit, width)
                for inner in orelse.body.body:
                    lines += lay_out(inner, indent + unit, unit, width)
                return lines
            if orelse is None:
                return lines
    text = cst.Module([statement], default_indent=unit).code  # type: ignore[list-item]
    return [(indent + line).rstrip() for line in text.strip("\n").split("\n")]


def _commented(
    text: str, end: cst.TrailingWhitespace, indent: str, unit: str, width: int
) -> list[str]:
    """A line with the comment behind it, which goes above it where there is no room."""
    lines = fit(one_line(text), indent, unit, width)
    if end.comment is None:
        return lines
    if len(lines) == 1 and len(lines[0]) + 2 + len(end.comment.value) <= width:
        return [f"{lines[0]}  {end.comment.value}"]
    return [*_comment(end.comment, indent, width), *lines]


def _comment(comment: cst.Comment, indent: str, width: int) -> list[str]:
    if len(indent) + len(comment.value) <= width:
        return [indent + comment.value]
    return textwrap.wrap(
        comment.value, width, initial_indent=indent, subsequent_indent=f"{indent}# "
    )
