"""The ways in which a call can be written anew, one for each choice of strategy.

``flag`` and ``replace`` write the differentiable equivalent, ``attach`` a function with a backward.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ...facts import ModuleFacts
from ...findings import Fix
from .rounded import ACTIVATION
from .site import Site
from .statements import SIMPLE

if TYPE_CHECKING:
    from ...engine import Options
    from ...rewrite.attach import Applied, Call
    from ...rewrite.branch import Change
    from ...rewrite.specialize import Use
    from ...rewrite.template import Template


class Writer(Protocol):
    """A way to write calls of fused ops anew."""

    strategies: tuple[str, ...]

    def template(
        self, call: ast.Call, arguments: Mapping[str, str | None]
    ) -> Template | Applied: ...

    def makes(self, call: ast.Call, argument: str) -> bool:
        """Whether an output is made, so that the buffer for it is not needed."""

    def leaves_out(self, call: ast.Call, index: int) -> bool:
        """Whether the new form has None for this one of several results."""

    def fixes(self, changes: Sequence[Change]) -> dict[str, Fix]: ...


class Equivalents:
    """Calls become their differentiable equivalents."""

    strategies: tuple[str, ...] = ("flag", "replace")

    def __init__(self, module: ModuleFacts, uses: Mapping[Site, Use], options: Options) -> None:
        from ...rewrite.branch import Vocabulary

        self.module = module
        self.flag = options.flag
        self.uses = {site.call: (site.op, use) for site, use in uses.items()}
        modules = [name for site in uses for name in site.op.imports]
        self.vocabulary = Vocabulary(module, list(uses.values()), modules, options.releases)

    def template(self, call: ast.Call, arguments: Mapping[str, str | None]) -> Template:
        from ...rewrite.template import Template

        op, use = self.uses[call]
        return Template(
            op,
            arguments,
            library=self.vocabulary.library,
            use=use,
            torch=self.vocabulary.torch,
            functional=self.vocabulary.functional,
            helper_names=self.vocabulary.helper_names,
        )

    def makes(self, call: ast.Call, argument: str) -> bool:
        return True

    def leaves_out(self, call: ast.Call, index: int) -> bool:
        from ...rewrite.specialize import is_none_result, reference

        tree = ast.parse(self.uses[call][1].value, mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            return False
        function = reference(tree.func.id)
        return function is not None and is_none_result(function, index)

    def fixes(self, changes: Sequence[Change]) -> dict[str, Fix]:
        from ...rewrite import branch

        return branch.fixes(self.module, self.vocabulary, changes, self.flag)


def use_of(site: Site) -> Use:
    """The equivalent to be written, with what is known of its arguments."""
    from ...rewrite.specialize import Use

    texts, sure = site.known()
    defaults = {a.name: a.default or "None" for a in site.op.signature.arguments}
    late = site.late or site.behind or not isinstance(site.statement, SIMPLE)
    return Use.of(site.value, {n: t or defaults[n] for n, t in texts.items()}, sure, late)


def attachable(site: Site) -> Call | None:
    """A call as strategy ``attach`` sees it, unless its results have no place to go."""
    from ...rewrite.attach import Call
    from ...rewrite.functionalize import CannotFunctionalize

    if site.unsupported() is not None or site.refused or ACTIVATION in site.bound:
        return None
    try:
        writes = site.writes()
    except CannotFunctionalize:
        return None
    texts, sure = site.known()
    return Call(
        node=site.call,
        op=site.op,
        target=site.target,
        value=site.value,
        outputs=tuple(site.outputs),
        texts=texts,
        keywords=frozenset(k.arg for k in site.call.keywords if k.arg is not None),
        sure=frozenset(sure),
        trained=frozenset(site.differentiable),
        buffers={
            name: (node, write.allocation)
            for name, write in writes.items()
            if name not in site.reads and (node := site.bound[name]) is not None
        },
    )
