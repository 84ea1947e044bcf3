"""Strategy ``attach``: the kernel stays, and a ``torch.autograd.Function`` gives it a backward.

Each op of a file gets one class.  Its ``forward`` runs the kernel on copies of what the kernel
overwrites.  Its ``backward`` is the closed form that :mod:`trainify.reference.backward` names, or
else computes the differentiable equivalent anew and asks autograd.  Where no gradient is wanted the
call is the one that stood there, at its own speed.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from ..catalog import FusedOp
from ..facts import ModuleFacts
from ..findings import Fix
from ..releases import Release
from . import branch, layout
from .autograd import Call as Call
from .autograd import CannotAttach as CannotAttach
from .autograd import KernelFunction, Written
from .branch import Change, Vocabulary
from .functionalize import Place
from .template import Rendered, assign_all


class Functions:
    """The classes of a file; those calls have none that ``reasons`` names."""

    def __init__(
        self,
        module: ModuleFacts,
        calls: Sequence[Call],
        releases: Sequence[Release] = (),
        flag: str = "grad",
    ) -> None:
        self.module = module
        self._flag = flag
        self.reasons: dict[ast.Call, str] = {}
        self._calls = {call.node: call for call in calls}
        self._functions: dict[ast.Call, KernelFunction] = {}
        groups: dict[tuple[FusedOp, str], list[Call]] = {}
        for call in calls:
            groups.setdefault((call.op, call.target.name), []).append(call)
        for group in groups.values():
            try:
                function = KernelFunction(module, group)
            except CannotAttach as error:
                self.reasons.update((call.node, str(error)) for call in group)
            else:
                self._functions.update((call.node, function) for call in group)
        modules = [name for call in calls for name in call.op.imports]
        uses = [f.backward.use for f in self.all]
        self.vocabulary = Vocabulary(module, uses, modules, releases)

    @property
    def all(self) -> list[KernelFunction]:
        return list(dict.fromkeys(self._functions.values()))

    @cached_property
    def written(self) -> dict[KernelFunction, Written]:
        """Each class under a name of its own, or under that of its like in the file."""
        there = {n.name: ast.dump(n) for n in self.module.tree.body if isinstance(n, ast.ClassDef)}
        done: dict[KernelFunction, Written] = {}
        for function in self.all:
            taken = {written.name for written in done.values()}
            for name in _names(function):
                written = function.write(name, self.vocabulary)
                if name not in taken:
                    if not layout.is_taken(self.module, name):
                        break
                    if there.get(name) == ast.dump(ast.parse(written.text).body[0]):
                        written = Written(name, "", ())
                        break
            done[function] = written
        return done

    strategies: tuple[str, ...] = ("attach",)

    def template(self, call: ast.Call, arguments: Mapping[str, str | None]) -> Applied:
        """What takes the place of a call."""
        function = self._function(call)
        text = function.apply(self._calls[call], arguments)
        return Applied(f"{self.written[function].name}.apply({text})")

    def makes(self, call: ast.Call, argument: str) -> bool:
        """Whether the class of a call makes this output itself."""
        return argument not in self._function(call).passed

    def leaves_out(self, call: ast.Call, index: int) -> bool:
        return False  # the kernel itself gives all results

    def fixes(self, changes: Sequence[Change]) -> dict[str, Fix]:
        """The fix for a run of changes; raises :class:`CannotPlace`."""
        statements = {statement for change in changes for statement in change.statements}
        written = dict.fromkeys(
            self.written[function]
            for call, function in self._functions.items()
            if self.module.statement(call) in statements
        )
        helpers = dict.fromkeys(helper for each in written for helper in each.helpers)
        edits = branch.flag_edits(self.module, changes, self._flag)
        asked = branch.condition(self.module, changes, self._flag)
        lines = [*branch.new_text(changes), asked, *(each.text for each in written)]
        self.vocabulary.refuse_shadowed(changes[0].first, "\n".join(lines))
        edits += self.vocabulary.support(lines, list(helpers))
        edits += [layout.helper_edit(self.module, each.text) for each in written if each.text]
        return {"attach": branch.fix(changes, edits, "Keep {} and give it a backward")}

    def _function(self, call: ast.Call) -> KernelFunction:
        if call not in self._functions:
            raise CannotAttach(self.reasons.get(call, "its results have no place"))
        return self._functions[call]


def _names(function: KernelFunction) -> Iterator[str]:
    """What a class may be called: ``RMSNorm``, ``RMSNormFunction``, ``AiterRMSNorm``, and so on."""
    root = function.calls[0].target.name.removeprefix("torch.ops.").partition(".")[0]
    library = "".join(word[:1].upper() + word[1:] for word in root.split("_"))
    for name in (function.name, library + function.name):
        yield name
        yield f"{name}Function"
    for number in count(2):
        yield f"{function.name}Function{number}"


@dataclass(frozen=True)
class Applied:
    """A call of a class, in the manner of :class:`~.template.Template`."""

    text: str
    is_expression: bool = True

    def render(
        self,
        places: Sequence[Place | None],
        taken: frozenset[str],
        *,
        value: bool = False,
        unread: Collection[int] = (),
    ) -> Rendered:
        """The call of the function, which gives all results, also those that are ``unread``."""
        if value:
            return Rendered([], self.text)
        return Rendered(assign_all(self.text, places, taken))
