"""TRN105 to TRN107: hand-written ``torch.autograd.Function`` classes with a faulty backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.backward_effects import adds_to_gradients, hands_on
from ..facts.frozen import is_frozen
from ..facts.grad_mode import own_nodes
from ..facts.guards import is_autograd_function
from ..facts.module import head
from ..facts.names import is_none, last_name, placed
from ..facts.walk import walk
from ..findings import STRATEGIES, Finding
from . import Rule, not_rewritten
from .fused_calls.calls import site_of
from .fused_calls.site import Site
from .raw_launches import kernel_of, launch

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode
    from ..releases import Release
    from ..rewrite.own_function import Forward

_HEAD = """\
import torch


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight
"""

RULES = (
    Rule(
        code="TRN105",
        name="function-without-backward",
        summary="An autograd.Function has no backward, or one that only raises or returns nothing.",
        why=(
            "Being an autograd.Function does not make an op trainable. Its output has a grad_fn "
            "and requires_grad, so everything looks right until backward(), which raises, or, "
            "where every gradient returned is None, leaves all inputs without one in silence."
        ),
        before=_HEAD,
        after="",
    ),
    Rule(
        code="TRN106",
        name="backward-drops-weight",
        summary="A backward returns None for an input that is a weight.",
        why=(
            "The weight gets no gradient although it requires one. That is only right where the "
            "weight is frozen; nothing says so when it is not."
        ),
        before=_HEAD
        + """\

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, None
""",
        after="",
    ),
    Rule(
        code="TRN107",
        name="backward-overwrites-gradient",
        summary="A backward writes into the gradient it was given.",
        why=(
            "The incoming gradient may be shared with another branch (a residual connection), "
            "which then receives the overwritten values: its gradient is wrong, without an error."
        ),
        before=_HEAD
        + """\

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_weight = (grad * x).sum(0)
        grad.mul_(weight)
        return grad, grad_weight
""",
        after="",
    ),
)

NEEDLES = (b"autograd.Function", b"Function)")

_WEIGHT = re.compile(r"(w|W|weights?|gamma|(?!teacher|ce_|class_)\w+_weight)$")
# The weight of a loss weighs classes; nothing trains it.
_LOSS = re.compile(r"loss|entropy|jsd|kl_?div|distill|preference|ppo|dpo", re.IGNORECASE)

# What an author says, in a name or in prose, of a weight that nothing trains.
_FROZEN = re.compile(r"frozen|never (?:\w+ )?requires?[ _]grad", re.IGNORECASE)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    broken: list[tuple[Forward | None, Finding]] = []
    for cls in module.classes:
        if cls.bases and is_autograd_function(module, cls):
            for finding, backward in _judge(module, cls):
                if finding.rule != "TRN105":
                    yield finding
                else:
                    broken.append((_forward(module, cls, backward, options), finding))
    yield from _with_backward(module, broken, options.releases)


def _with_backward(
    module: ModuleFacts,
    broken: Sequence[tuple[Forward | None, Finding]],
    releases: Sequence[Release],
) -> Iterator[Finding]:
    """The findings on functions without a backward, each with one where it is known."""
    forwards = [forward for forward, _ in broken if forward is not None]
    if not forwards:
        yield from (finding for _, finding in broken)
        return
    from ..rewrite.own_function import fixes

    found = fixes(module, forwards, releases)
    for forward, finding in broken:
        fix = found[forward.owner] if forward is not None else None
        if isinstance(fix, str):
            yield replace(finding, message=finding.message + not_rewritten(fix))
        elif fix is not None:
            yield replace(finding, fixes=dict.fromkeys(STRATEGIES, fix))
        else:
            yield finding


def _judge(module: ModuleFacts, cls: ast.ClassDef) -> Iterator[tuple[Finding, FunctionNode | None]]:
    """What is wrong with a class, and the backward that does nothing if it has one."""
    methods = {
        n.name: n for n in cls.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    names = {
        t.id
        for n in cls.body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    forward = methods.get("forward")
    if forward is None or {"symbolic"} & (set(methods) | names):
        return  # a base for others, or an export shim
    if _declares_constants(forward, methods.get("setup_context")):
        return
    backward = methods.get("backward") or methods.get("vjp")
    if backward is None:
        if not {"backward", "vjp"} & names and len(cls.bases) == 1:
            message = (
                f"`{cls.name}` has no backward: its output requires grad, and backward() raises."
            )
            yield module.finding("TRN105", message, head(cls)), None
        return
    if _only_raises(backward):
        message = f"the backward of `{cls.name}` only raises: nothing before it can be trained."
        yield module.finding("TRN105", message, head(backward)), backward
        return
    if _does_nothing(backward) and any(r.value is not None for r in _returns(forward)):
        message = (
            f"the backward of `{cls.name}` does nothing: all inputs are left without a gradient."
        )
        yield module.finding("TRN105", message, head(backward)), backward
        return
    returned = [r for r in walk(backward) if isinstance(r, ast.Return)]
    values = [_elements(r.value) for r in returned]
    if values and all(all(is_none(v) for v in each) for each in values):
        if hands_on(module, backward):
            return
        message = (
            f"the backward of `{cls.name}` returns None for every input: all of them are left "
            "without a gradient, in silence."
        )
        yield module.finding("TRN105", message, returned[0]), backward
        return
    for finding in _dropped(module, cls, forward, backward, returned, values):
        yield finding, None
    for finding in _overwritten(module, cls, backward):
        yield finding, None


# -- what a forward computes ----------------------------------------------------------------------


def _forward(
    module: ModuleFacts, cls: ast.ClassDef, useless: FunctionNode | None, options: Options
) -> Forward | None:
    """A forward that is one kernel over its own parameters, as far as that shows for sure."""
    methods = {n.name: n for n in cls.body if isinstance(n, ast.FunctionDef)}
    node = methods.get("forward")
    if node is None or "setup_context" in methods:
        return None
    if useless is not None and useless.name != "backward":
        return None
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    text = module.source(node)
    if re.search(r"save_for_backward|mark_(dirty|non_differentiable)|ctx\.\w+ =", text):
        return None
    return kernel_over(module, cls, node, 1, options, useless) if static else None


def kernel_over(
    module: ModuleFacts,
    owner: ast.ClassDef | FunctionNode,
    node: FunctionNode,
    skipped: int,
    options: Options,
    useless: FunctionNode | None = None,
) -> Forward | None:
    """A function that is one kernel over its own parameters, the ``skipped`` first ones aside."""
    given = node.args
    names = placed(node)[skipped:]
    if given.vararg or given.kwarg or given.kwonlyargs or not names:
        return None
    sites = list(_sites(module, node, options))
    returns = [n for n in walk(node) if isinstance(n, ast.Return)]
    if len(sites) != 1 or len(returns) != 1 or node.body[-1] is not returns[0]:
        return None
    return _Traced(module, node, sites[0], returns[0]).forward(owner, names, useless)


def _sites(module: ModuleFacts, function: FunctionNode, options: Options) -> Iterator[Site]:
    for call in module.calls:
        if module.function(call) is not function:
            continue
        if isinstance(call.func, ast.Subscript):
            kernel = kernel_of(module, call.func.value)
            site = launch(module, call, kernel, "") if kernel is not None else None
        else:
            site = site_of(module, call, options)
        if site is not None:
            yield site


class _Traced:
    """The operands of the one kernel of a forward, traced to the parameters."""

    def __init__(
        self, module: ModuleFacts, node: FunctionNode, site: Site, result: ast.Return
    ) -> None:
        self.module = module
        self.node = node
        self.site = site
        self.result = result
        self.flow = module.flow(node)
        self.flat = False
        """Whether an operand has its leading dimensions made one."""

    def forward(
        self,
        owner: ast.ClassDef | FunctionNode,
        names: Sequence[str],
        useless: FunctionNode | None,
    ) -> Forward | None:
        from ..rewrite.own_function import Forward

        site = self.site
        if site.in_place or len(site.outputs or site.op.signature.returns) != 1:
            return None
        if not self._does_nothing_else():
            return None
        texts: dict[str, str] = {}
        tensors: list[str] = []
        for name in site.reads:
            argument = next((a for a in site.op.signature.arguments if a.name == name), None)
            node = site.bound.get(name)
            if argument is None:
                continue
            if node is None:
                texts[name] = argument.default or "None"
                continue
            text = self._traced(node, site.statement)
            if text is None:
                return None
            texts[name] = text
            if name in site.differentiable and text in names:
                tensors.append(text)
        if not tensors or not self._returns_the_result():
            return None
        used = ast.parse(site.value, mode="eval").body
        for each in walk(used):
            if isinstance(each, ast.Name) and each.id in texts:
                each.id = texts[each.id]
        defaults = self.node.args.defaults
        last = self.node.args.args[len(self.node.args.args) - len(defaults) :]
        optional = {a.arg for a, d in zip(last, defaults, strict=True) if is_none(d)}
        source = self.module.source(self.node)
        sure = {t for t in tensors if t not in optional and f"{t} is " not in source}
        return Forward(
            owner=owner,
            node=self.node,
            parameters=tuple(names),
            equivalent=ast.unparse(used),
            tensors=tuple(dict.fromkeys(tensors)),
            sure=frozenset(sure),
            call=site.call,
            result=self.result,
            look_at=site.op.look_at,
            useless=useless,
        )

    def _does_nothing_else(self) -> bool:
        """Whether forward makes names and runs the kernel, always, and writes into nothing."""
        for statement in walk(self.node):
            if isinstance(statement, ast.Expr) and statement is not self.site.statement:
                if not isinstance(statement.value, ast.Constant):
                    return False
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
                own = [statement.target] if isinstance(statement, ast.AnnAssign) else []
                targets = own or getattr(statement, "targets", [])
                if any(isinstance(n, (ast.Subscript, ast.Attribute)) for n in targets):
                    return False
            elif isinstance(statement, (ast.AugAssign, ast.For, ast.While, ast.Try)):
                return False
        above = self.module.ancestors(self.site.statement)
        return next(a for a in above if not isinstance(a, ast.With)) is self.node

    def _traced(self, node: ast.expr, at: ast.stmt) -> str | None:
        """The parameter, or the literal, that an operand is."""
        if isinstance(node, ast.Constant):
            return ast.unparse(node)
        if isinstance(node, ast.Name):
            definition = self.flow.only_definition(node.id, at)
            if definition is None:
                return None
            if definition.is_parameter:
                return node.id
            if definition.value is None or definition.statement is None:
                return None
            if definition.index is not None:
                return None
            return self._traced(definition.value, definition.statement)
        if isinstance(node, ast.Attribute) and node.attr == "data":
            return self._traced(node.value, at)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("contiguous", "detach") and not node.args:
                return self._traced(node.func.value, at)
            if self._flattens(node):
                self.flat = True
                return self._traced(node.func.value, at)
        return None

    def _flattens(self, node: ast.Call) -> bool:
        """``x.view(-1, x.shape[-1])``, of a kernel that treats each row by itself."""
        assert isinstance(node.func, ast.Attribute)
        if node.func.attr not in ("view", "reshape") or len(node.args) != 2:
            return False
        if self.site.rule != "TRN104":  # other ops may look at more than a row
            return False
        first, last = map(ast.unparse, node.args)
        of = ast.unparse(node.func.value).removesuffix(".contiguous()")
        return first == "-1" and last in (f"{of}.shape[-1]", f"{of}.size(-1)")

    def _returns_the_result(self) -> bool:
        """Whether forward returns what the kernel gives, in the shape of its operand."""
        value, site = self.result.value, self.site
        if not site.op.signature.written:
            if value is site.call:
                return True
            made = site.statement
            return (
                isinstance(made, ast.Assign)
                and made.value is site.call
                and isinstance(value, ast.Name)
                and [ast.unparse(t) for t in made.targets] == [value.id]
                and not self.flat
            )
        written = [site.bound[a.name] for a in site.op.signature.written]
        viewed = False
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            viewed = value.func.attr in ("view", "reshape", "view_as", "reshape_as")
            value = value.func.value if viewed else value
        if len(written) != 1 or not isinstance(written[0], ast.Name):
            return False
        if not isinstance(value, ast.Name) or value.id != written[0].id:
            return False
        return viewed or not self.flat


def _dropped(
    module: ModuleFacts,
    cls: ast.ClassDef,
    forward: FunctionNode,
    backward: FunctionNode,
    returned: Sequence[ast.Return],
    values: Sequence[list[ast.expr]],
) -> Iterator[Finding]:
    """Weights whose slot is None in every return, and that backward does not ask about."""
    inputs = placed(forward)
    inputs = inputs[1 + (inputs[:1] == ["cls"]) :]
    if any(isinstance(v, ast.Starred) for each in values for v in each):
        return  # how many it gives shows at run time only
    text = module.source(backward)
    if _LOSS.search(cls.name) or _FROZEN.search(module.source(cls)):
        return
    if adds_to_gradients(module, backward):
        return
    if "needs_input_grad" in text or "mark_non_differentiable" in module.source(forward):
        return
    for i, name in enumerate(inputs):
        slots = [each[i] for each in values if len(each) > i]
        if len(slots) == len(values) and slots and all(is_none(s) for s in slots):
            if re.search(rf"\b{name}\.dequantize\(", module.source(cls)):
                continue  # it holds codes
            if _is_only_kept(module, forward, name):
                continue  # the result does not depend on it
            is_weight = _WEIGHT.fullmatch(name) and not _is_quantized(name, inputs)
            if is_weight or _is_given_a_parameter(module, cls, i):
                what = "weight" if is_weight else "parameter"
                message = (
                    f"the backward of `{cls.name}` returns None for `{name}`: the {what} never "
                    "gets a gradient."
                )
                yield module.finding("TRN106", message, returned[0])


def _is_only_kept(module: ModuleFacts, forward: FunctionNode, name: str) -> bool:
    """Whether a forward does nothing with an input but to keep it for backward."""
    for node in walk(forward):
        if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Store):
            continue
        parent = module.parent(node)
        if isinstance(parent, ast.Call) and last_name(parent.func) == "save_for_backward":
            continue
        kept = isinstance(parent, ast.Assign) and parent.value is node
        if not kept or not all(isinstance(t, ast.Attribute) for t in parent.targets):  # type: ignore[union-attr]
            return False
    return True


def _is_given_a_parameter(module: ModuleFacts, cls: ast.ClassDef, index: int) -> bool:
    """Whether a call of a function passes a parameter of a module that nothing freezes."""
    for call in module.calls_named("apply"):
        owner_name = last_name(getattr(call.func, "value", None))
        if owner_name != cls.name or len(call.args) <= index:
            continue
        given = call.args[index]
        if any(isinstance(argument, ast.Starred) for argument in call.args[: index + 1]):
            continue
        if isinstance(given, ast.Attribute) and isinstance(given.value, ast.Name):
            owner = module.names.self_class(given.value)
            made = module.names.attributes(owner).get(given.attr, ()) if owner else ()
            values = [each.value for each in made]
            if owner is not None and values and all(_is_parameter(module, v) for v in values):
                if not is_frozen(module, owner, given.attr):
                    return True
    return False


def _is_parameter(module: ModuleFacts, node: ast.expr | None) -> bool:
    """Whether an expression makes a parameter that requires a gradient."""
    if not isinstance(node, ast.Call) or not module.is_name(node.func, "torch.nn.Parameter"):
        return False
    return len(node.args) == 1 and not node.keywords and not _INTEGER.search(module.source(node))


_INTEGER = re.compile(r"\bu?int\d*\b|\blong\b|\bbool\b|\bbyte\b")


def _is_quantized(weight: str, inputs: Sequence[str]) -> bool:
    """Whether a weight comes with scales, and so holds codes, which nothing trains."""
    scales = rf"({weight}|[wW])_?(scales?|zeros?|zero_points?)(_inv)?|{weight}_(quant|state)"
    kept = re.compile(rf"{scales}|scales|scale_inv|qzeros|absmax|quant_state")
    return any(kept.fullmatch(name) for name in inputs)


def _overwritten(
    module: ModuleFacts, cls: ast.ClassDef, backward: FunctionNode
) -> Iterator[Finding]:
    """In-place writes into the gradients that backward receives."""
    arguments = placed(backward)[1:]
    flow = module.flow(backward)
    for statement in module.statements:
        if module.function(statement) is not backward:
            continue
        name = _written(statement)
        if name not in arguments:
            continue
        if any(not d.is_parameter for d in flow.reaching(name, statement)):
            continue  # a copy of its own
        message = (
            f"the backward of `{cls.name}` writes into `{name}`, which another branch may share: "
            "that branch gets a wrong gradient."
        )
        yield module.finding("TRN107", message, statement)


def _written(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        if isinstance(statement.targets[0], ast.Subscript):
            target = statement.targets[0].value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and re.fullmatch(r"[a-z]\w*[a-z]_", function.attr):
            target = function.value
    return target.id if isinstance(target, ast.Name) else None


def _declares_constants(forward: FunctionNode, setup: FunctionNode | None) -> bool:
    """Whether all results are marked as not differentiable: codes, a mask.  Backward never runs."""
    function = setup or forward
    marked = {
        node.id
        for call in walk(function)
        if isinstance(call, ast.Call) and last_name(call.func) == "mark_non_differentiable"
        for node in call.args
        if isinstance(node, ast.Name)
    }
    if setup is not None:
        return bool(marked) and setup.args.args[-1].arg in marked
    values = [value for each in _returns(forward) for value in _elements(each.value)]
    return bool(values) and all(isinstance(v, ast.Name) and v.id in marked for v in values)


def _only_raises(function: FunctionNode) -> bool:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return bool(body) and isinstance(body[0], ast.Raise)


def _does_nothing(function: FunctionNode) -> bool:
    """Whether a body is ``pass``, ``...``, a docstring or a bare ``return``, or all of them."""
    return all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Return) and node.value is None)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in function.body
    )


def _returns(function: FunctionNode) -> list[ast.Return]:
    return [node for node in own_nodes(function) if isinstance(node, ast.Return)]


def _elements(value: ast.expr | None) -> list[ast.expr]:
    """The gradients that a return gives; a bare ``return`` gives None for all."""
    if value is None:
        return []
    if isinstance(value, ast.Tuple):
        return list(value.elts)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return [*_elements(value.left), *_elements(value.right)]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        repeated = [side for side in (value.left, value.right) if isinstance(side, ast.Tuple)]
        if repeated and all(is_none(element) for element in repeated[0].elts):
            return list(repeated[0].elts)  # (None,) * n, however many
    return [value]
