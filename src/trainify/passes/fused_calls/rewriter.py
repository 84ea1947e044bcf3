"""The fixes of all fused calls of a file, by strategy, and the findings that carry them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...findings import Finding, Fix, Safety
from .. import not_rewritten
from .messages import message_of, release_of
from .served import ServedPlaces
from .site import Site
from .statements import NoRewrite, StatementRewriter
from .writers import Equivalents, Writer, attachable, use_of

if TYPE_CHECKING:
    from ...engine import Options
    from ...rewrite.branch import Change


_KERNELS = ("TRN101", "TRN102", "TRN103", "TRN108")


@dataclass
class _Plan:
    """A site with its fixes, or the reasons why there is none, by strategy."""

    site: Site
    reasons: dict[str, str] = field(default_factory=dict)
    fixes: dict[str, Fix] = field(default_factory=dict)


class Rewriter:
    """Plans the rewriting of all sites of a file."""

    def __init__(self, module: ModuleFacts, options: Options, sites: Sequence[Site]) -> None:
        self.module = module
        self.options = options
        self.plans = {site.call: _Plan(site) for site in sites}
        self.served = ServedPlaces()
        functions: dict[ast.AST | None, list[Site]] = {}
        for site in sites:
            functions.setdefault(module.function(site.call), []).append(site)
        for together in functions.values():
            for site in together:
                site.beside = together

    def findings(self) -> Iterator[Finding]:
        if self.options.plan:
            writers = [self._equivalents, self._functions]
            if self.options.strategy == "attach" and not self.options.others:
                writers.reverse()
            for writer in writers:
                if self.options.others or not self._all_fixed():
                    self._plan(writer())
        for plan in self.plans.values():
            yield self._finding(plan)

    def _equivalents(self) -> Writer:
        sites = [plan.site for plan in self.plans.values()]
        uses = {site: use_of(site) for site in sites if site.unsupported() is None}
        return Equivalents(self.module, uses, self.options)

    def _functions(self) -> Writer:
        from ...rewrite.attach import Functions

        sites = [plan.site for plan in self.plans.values()]
        calls = [call for site in sites if (call := attachable(site)) is not None]
        return Functions(self.module, calls, self.options.releases, self.options.flag)

    def _all_fixed(self) -> bool:
        return all(self.options.strategy in plan.fixes for plan in self.plans.values())

    def _plan(self, writer: Writer) -> None:
        """Find the fixes that a writer has."""
        from ...rewrite import branch
        from ...rewrite.attach import CannotAttach
        from ...rewrite.functionalize import CannotFunctionalize

        by_statement: dict[ast.stmt, list[_Plan]] = {}
        for plan in self.plans.values():
            by_statement.setdefault(plan.site.statement, []).append(plan)
        changes: list[Change] = []
        for statement, plans in by_statement.items():
            sites = [plan.site for plan in plans]
            try:
                changes.append(StatementRewriter(self.module, statement, sites, writer).change())
            except (NoRewrite, CannotFunctionalize, CannotAttach) as error:
                for plan in plans:
                    plan.reasons.update(dict.fromkeys(writer.strategies, str(error)))
        for run in branch.group(self.module, changes):
            changed = [plan for change in run for plan in by_statement[change.first]]
            for plan in changed:
                try:
                    plan.fixes.update(self._judged(writer.fixes(run), changed))
                except branch.CannotPlace as error:
                    plan.reasons.update(dict.fromkeys(writer.strategies, str(error)))

    def _judged(self, fixes: dict[str, Fix], plans: Sequence[_Plan]) -> dict[str, Fix]:
        """Unsafe, where what one of the sites gives becomes an array with gradients on."""
        needed = next((found for plan in plans if (found := self.served.first(plan.site))), None)
        if needed is None:
            return fixes
        of_module = self.module.method_class(self.module.function(plans[0].site.call)) is not None
        keeps = self.options.flag == "training" and of_module and needed.evaluated
        look_at = needed.look_at(self.module.path)
        return {
            strategy: fix if keeps and strategy == "flag" else fix.unsafe(look_at)
            for strategy, fix in fixes.items()
        }

    def _finding(self, plan: _Plan) -> Finding:
        site = plan.site
        message = (site.said or message_of(site)) + release_of(site.op, self.options)
        reason = plan.reasons.get(self.options.strategy)
        fixes = plan.fixes
        if self.options.plan and not fixes:
            fixes = twin(self.module, site.call, self.options)
        if reason and self.options.strategy not in fixes:
            message += not_rewritten(reason)
        found = self.module.finding(site.code, message, site.call, fixes, tuple(site.related()))
        return replace(found, op=site.name(self.options))


def other_path(module: ModuleFacts, call: ast.Call, options: Options) -> dict[str, Fix]:
    """The fixes of a kernel that nothing stands for: to go round it, where there is a way."""
    if _keeps_another(module, call):
        return {}
    native = twin(module, call, options)
    if any(fix.safety is Safety.SAFE for fix in native.values()):
        return native
    if not any(isinstance(a, ast.If) for a in module.ancestors(call)):
        function = module.function(call)
        if function is None or not any(isinstance(s, ast.If) for s in function.body):
            return native
    from ...rewrite.guard import fixes

    return fixes(module, call, options.flag) or native


def twin(module: ModuleFacts, call: ast.Call, options: Options) -> dict[str, Fix]:
    """The fix by the layer's own implementation in PyTorch, where it has one."""
    if "def forward_native(" not in module.usual or _keeps_another(module, call):
        return {}
    from ...rewrite.twin import fixes

    return fixes(module, call, options.flag)


def _keeps_another(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a comment in the same function is to keep a kernel, so that none goes round both."""
    kept = [
        line
        for line, codes in module.suppressions.on_line.items()
        if any(rule.startswith(codes) for rule in _KERNELS)
    ]
    function = module.function(call) if kept else None
    if function is None or function.end_lineno is None:
        return False
    return any(function.lineno <= line <= function.end_lineno for line in kept)
