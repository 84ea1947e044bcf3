"""TRN201 and TRN203: a model's forward that always runs with gradients switched off."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

from ..facts import ModuleFacts
from ..facts.backpropagated import trained_through
from ..facts.comments import with_comments
from ..facts.frozen import is_frozen
from ..facts.grad_bytes import (
    FORWARD,
    MODES,
    Mention,
    decorated_elsewhere,
    decorators_of_forwards,
    is_mode_of_other_file,
    makes_modules,
    mentions,
)
from ..facts.grad_bytes import returns_numbers as returns_numbers_by_bytes
from ..facts.grad_mode import (
    Scope,
    decorator_scope,
    no_grad_scope,
    own_nodes,
    scope_around,
    scope_inside,
    scope_of_returns,
    wrapping,
)
from ..facts.gradients import Gradients
from ..facts.graph import Graph, results, scope_of_results, under_scopes
from ..facts.guards import (
    gradient_unwanted,
    inference_entries,
    is_forward,
    is_inference_entry,
    runs_model,
)
from ..facts.layers import bases_of, is_empty, is_module_class, may_be_module, training_flag
from ..facts.learning import LOSS_CALL, backward_values, may_learn
from ..facts.memo import once
from ..facts.module import head
from ..facts.names import last_name, parameters, self_name
from ..facts.scoped_methods import scoped_methods
from ..facts.trainable import (
    holds_weights,
    is_reference,
    returns_numbers,
    trained_submodules,
)
from ..facts.words import declare, found, places
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts import Project
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN201",
        name="forward-without-grad",
        summary="A module's forward always runs with gradients switched off.",
        why=(
            "Nothing computed in forward has a grad_fn, so backward() either raises (element 0 of "
            "tensors does not require grad) or, where the loss has another path, leaves every "
            "parameter of the module without a gradient. The scope belongs where inference starts, "
            "in generate or predict: as no_grad where these give tensors, since one made under "
            "inference_mode cannot be saved for backward. Where no such place shows, it can follow "
            "self.training, which serves as before only if the model is in eval mode there."
        ),
        before="""\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    @torch.inference_mode()
    def forward(self, x):
        return self.head(x)

    def generate(self, x):
        return self(x).argmax(-1).tolist()
""",
        after="""\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x)

    @torch.inference_mode()
    def generate(self, x):
        return self(x).argmax(-1).tolist()
""",
    ),
    Rule(
        code="TRN203",
        name="inference-entry-without-scope",
        summary="Inference relied on a scope that moves out of the model's forward.",
        why=(
            "The model's own forward switches gradients off (TRN201). When that scope goes, the "
            "functions that start inference must have it, or generation builds a graph and runs "
            "out of memory."
        ),
        before="",
        after="",
    ),
)

_STARTS = declare(
    *(
        word + name
        for word in (b"def ", b"def _")
        for name in (
            b"generate sample predict evaluate infer complet chat stream text_completion "
            b"beam_search greedy_ profile warm dummy_run capture"
        ).split()
    )
)
_CALLS_OWN = re.compile(rb"\bself\.\w+(?:\[[^\]]*\])?\(")


def _scopes_forward(data: bytes) -> bool:
    """Whether a file has a grad mode on a forward, in it, or around it."""
    if b"forward" not in data:
        return any(m.kind == "decorator" and _is_call_of_module(data, m) for m in mentions(data))
    return any(
        m.function[:1].isupper()
        or (m.kind == "decorator" and _is_call_of_module(data, m))
        or (m.kind in ("decorator", "with") and _is_delegate(data, m))
        or (
            m.function.startswith(b"forward")
            and makes_modules(data, m.at)
            and (
                not returns_numbers_by_bytes(data, m.at)
                if m.kind == "decorator"
                else _works(m.block)
            )
        )
        if m.kind in ("decorator", "with")
        else b"forward" in m.line
        or m.line.endswith(MODES)
        or b" as " in m.line
        or (m.function.startswith(b"forward") and _SETS.search(m.line) is not None)
        for m in mentions(data)
    )


def _is_call_of_module(data: bytes, mention: Mention) -> bool:
    """Whether a mode is on ``__call__`` of a class that says it is a module."""
    if mention.function != b"__call__":
        return False
    begin = data.rfind(b"class ", 0, mention.at)
    return b"Module" in data[begin : data.find(b"\n", begin)]


def _is_delegate(data: bytes, mention: Mention) -> bool:
    """Whether a forward may hand all of its work to a function with a mode in it or on it."""
    name = mention.function
    if not name or name in (b"forward", b"__init__", b"__call__"):
        return False
    if data.count(name + b"(") < 2:  # nothing but its definition, as a rule
        return False
    if not makes_modules(data, mention.at):
        return False
    called = re.compile(rb"return [^\n]*\b" + name + rb"\(|= *(?:self\.)?" + name + rb"\(")
    return any(called.search(data, at, _method_end(data, at)) for at in places(data, FORWARD))


_METHOD = re.compile(rb"\n(?:    |\t)?(?:def |class |@)")


def _method_end(data: bytes, at: int) -> int:
    after = _METHOD.search(data, at)
    return after.start() if after else len(data)


def _may_start(data: bytes) -> bool:
    return not found(data).keys().isdisjoint(_STARTS)


_SETS = re.compile(rb"^[^=]*set_grad_enabled\(|\)\(|__enter__|no_grad\(\w|=[^=]*\(\)$")
"""What else puts work of a forward under a mode: a switch, a wrapper, a context that is entered."""


def _works(block: bytes) -> bool:
    return _CALLS_OWN.search(block) is not None


def _is_decorated(data: bytes) -> bool:
    """Whether a forward has a decorator that may be a mode; :func:`concerns` asks its file."""
    return decorated_elsewhere(data) or bool(decorators_of_forwards(data))


NEEDLES: tuple[Needle, ...] = (
    Look(MODES, _scopes_forward),
    Look((FORWARD,), _is_decorated),
    *_STARTS,
)


def concerns(data: bytes, path: str, project: Project, options: Options) -> bool:
    """A file that merely starts inference matters where a forward near it has a scope."""
    if _scopes_forward(data) or decorated_elsewhere(data):
        return True
    if any(
        is_mode_of_other_file(data, path, project, name) for name in decorators_of_forwards(data)
    ):
        return True
    return _may_start(data) and any(project.summaries(path, _scopes, _scopes_forward))


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    covers = list(_covers(module))
    # One scope for all: an entry that several forwards lose theirs to gets it once.
    scope = covers[0].scope if covers else None
    for cover in covers:
        yield _forward(module, cover, covers[0].scope, options)
    yield from _instances(module)
    yield from _entries(module, scope)


# -- what covers a forward ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cover:
    """A scope over all that a forward computes.

    ``wrapper`` is the statement that wraps it: ``self.forward = torch.no_grad()(self.forward)``.
    """

    function: FunctionNode
    scope: Scope
    wrapper: ast.stmt | None = None


def _covers(module: ModuleFacts) -> Iterator[_Cover]:
    scoped = module.scoped_functions
    wrapped = _wraps(module)
    for function in module.functions:
        cls = module.method_class(function)
        if cls is None:
            continue
        if function.name == "__call__":
            if function.decorator_list and _runs_forward(module, cls, function):
                scope = decorator_scope(module, function)
                if scope is not None and _is_to_train(module, cls, function):
                    yield _Cover(function, scope)
            continue
        if not is_forward(function):
            continue
        scope = decorator_scope(module, function)
        if scope is None and function in scoped:
            scope = _around_body(module, cls, function)
        if scope is None and cls.decorator_list:
            scope = _by_class_decorator(module, cls)
        if scope is not None:
            cover = _Cover(function, scope)
        elif wrapped and function.name == "forward":
            found = _wrapped(module, cls, function)
            if found is None:
                continue
            cover = found
        else:
            if function.name == "forward" and _may_delegate(module, cls, function):
                if _is_to_train(module, cls, function):
                    yield from _delegates(module, cls, function)
            continue
        if _is_to_train(module, cls, function):
            yield cover
    if wrapped:
        for cls, cover in _renamed(module):
            if _is_to_train(module, cls, cover.function):
                yield cover


def _is_to_train(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    return (
        holds_weights(module, cls)
        and may_be_module(module, cls)
        and not _SEARCHES.search(cls.name)
        and not _INFERS.search(cls.name)
        and not returns_numbers(function)
        and not _hands_over(function)
        and not gradient_unwanted(module, cls)
        and not _trains_beside(module, cls)
        and not _is_side_door(module, cls, function)
        and any(isinstance(node, ast.Call) for s in function.body for node in ast.walk(s))
        and not is_empty(module, cls)
        and not _is_declared_so(module, cls, function)
        and not _is_frozen_by_its_users(module, cls)
    )


_SEARCHES = re.compile(r"Beam(?!f)|Greedy|Viterbi|KenLM|Ensemble|(?<!Up)(?<!Down)(?<!Re)Sampler$")
"""Names of modules that search or draw what networks make likely, which is inference."""
_INFERS = re.compile(r"Inference(?:Model|Module|Engine|Wrapper|Layer)?$|^Inference[A-Z]")
"""Names of modules that are there to serve, whatever trains beside them."""
_GENERATES = re.compile(r"_*(?:generate|sample|beam_search|greedy_search|decode)(?:_batch)?$")


def _hands_over(function: FunctionNode) -> bool:
    """Whether all that a forward does is to call its object's own ``generate``, or the like."""
    values = [value for value, _ in results(function)]
    return bool(values) and all(
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and isinstance(value.func.value, ast.Name)
        and value.func.value.id == self_name(function)
        and _GENERATES.match(value.func.attr) is not None
        for value in values
    )


def _is_declared_so(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether a base class's abstract method has a scope: then all that implement it infer."""
    for home, base in bases_of(module, cls):
        for method in _methods(base):
            if method.name == function.name and decorator_scope(home, method) is not None:
                if any("abstractmethod" in home.source(d) for d in method.decorator_list):
                    return True
    return False


def _is_frozen_by_its_users(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether each class of the project that has such a module as a part freezes that part."""
    frozen = False
    for home in module.project.mentioning(module, f"{cls.name}(", containing=b"requires_grad"):
        for owner in home.classes:
            for name, bindings in home.names.attributes(owner).items():
                values = [b.value for b in bindings if isinstance(b.value, ast.Call)]
                if any(last_name(value.func) == cls.name for value in values):
                    if not is_frozen(home, owner, name):
                        return False
                    frozen = True
    return frozen


def _is_side_door(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether a class learns by a forward of its own that ``forward_step`` is no part of."""
    if function.name in ("forward", "__call__") or _TRAINS.search(function.name):
        return False
    own = next(
        (f for f in module.functions_named("forward") if module.method_class(f) is cls), None
    )
    if own is None or decorator_scope(module, own) is not None:
        return False
    return re.search(rf"\bself\.{function.name}\b", module.source(cls)) is None


_TRAINS = re.compile(r"training_step|shared_step|train_|_train|loss", re.IGNORECASE)


def _trains_beside(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a class is trained by a method that runs its parts without its forward."""
    beside = False
    for method in cls.body:
        if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if not _TRAINS.search(method.name) or is_forward(method):
            continue
        me = self_name(method)
        for node in own_nodes(method):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id == me:
                return False
            if isinstance(node.func, ast.Attribute) and node.func.attr == "forward":
                return False
            if _calls_own(node, me) and may_learn(module, node):
                beside = beside or scope_inside(module, node, method) is None
    return beside


def _runs_forward(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether ``__call__`` of a module is all that calling it runs, its forward included."""
    if not is_module_class(module, cls) or _KEEPS.search(cls.name):
        return False
    trained = trained_submodules(module, cls)
    if any(method.name == "forward" for method in _methods(cls)):
        return bool(trained) and _CALLS_FORWARD.search(module.source(function)) is not None
    return bool(trained & _own_attributes(function, self_name(function)))


_CALLS_FORWARD = re.compile(r"\bsuper\([^()]*\)\.__call__\(|\.forward\(")


def _methods(cls: ast.ClassDef) -> Iterator[FunctionNode]:
    return (s for s in cls.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _own_attributes(function: FunctionNode, me: str | None) -> set[str]:
    """The attributes of the object ``me`` that a function mentions."""
    return {
        node.attr
        for node in own_nodes(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == me
    }


def _may_delegate(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether there is a function under a scope of its own that a forward may leave its work to."""
    return any(
        module.method_class(each) is cls or module.function(each) is function
        for each in under_scopes(module)
    )


def _delegates(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> Iterator[_Cover]:
    """The functions under scopes of their own that a forward leaves all of its work to.

    Methods of the same object, or functions inside of the forward.
    """
    if _KEEPS.search(cls.name):
        return
    graph, me = Graph(module, function), self_name(function)
    trained = trained_submodules(module, cls)
    found: dict[FunctionNode, Scope] = {}
    for step in graph.back_from(results(function)):
        if not isinstance(step.node, ast.Call) or not may_learn(module, step.node):
            if step.cut is None and graph.attribute(step.node, step.at) in trained:
                return
            continue
        callee = graph.callee(step.node)
        scope = scope_of_results(module, callee) if callee is not None else None
        if callee is None or scope is None:
            if step.cut is None or scope_inside(module, step.at, function) is not None:
                return
            continue  # before what runs under a scope: TRN206
        inside = module.method_class(callee) is cls or module.function(callee) is function
        if not inside or is_inference_entry(module, callee) or returns_numbers(callee):
            return
        found[callee] = scope
    for callee, scope in found.items():
        name = me if module.method_class(callee) is None else self_name(callee)
        if trained & _own_attributes(callee, name):
            yield _Cover(callee, scope)


_WRAPS = re.compile(r"\bforward = .*\)\(.+\)")


def _wraps(module: ModuleFacts) -> bool:
    return "forward = " in module.text and _WRAPS.search(module.text) is not None


_KEEPS = re.compile(r"extract|perceptual|feature|clip|vgg|dino|inception", re.IGNORECASE)
"""Names of modules around a network that is there to be used, not to be trained."""


def _around_body(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> Scope | None:
    """A ``with`` that holds all the work of a forward with modules of its own."""
    if _KEEPS.search(cls.name):
        return None
    graph, me = Graph(module, function), self_name(function)
    scopes: set[Scope | None] = set()
    learns = False
    trained = trained_submodules(module, cls)
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and not _is_context(module, node) and may_learn(module, node):
            at = module.statement(node)
            scopes.add(wrapping(module, node.func, at) or scope_inside(module, node, function))
            learns = learns or graph.attribute(node, at) in trained
        elif _is_weight(node, module, me) and node.attr in trained:
            scopes.add(scope_inside(module, node, function))
    return scopes.pop() if learns and len(scopes) == 1 else None


def _is_weight(node: ast.AST, module: ModuleFacts, me: str | None) -> TypeGuard[ast.Attribute]:
    """``x @ self.weight``, ``F.linear(x, self.weight)``: a value, nothing that is called."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    parent = module.parent(node)
    if isinstance(parent, ast.Call):
        if node not in parent.args or wrapping(module, parent, module.statement(parent)):
            return False
    elif not isinstance(parent, (ast.BinOp, ast.Return)):
        return False
    return node.value.id == me


def _calls_own(node: ast.AST, me: str | None) -> bool:
    """Whether a node is a call of something of ``self``."""
    if not isinstance(node, ast.Call):
        return False
    root: ast.expr = node.func
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    return isinstance(root, ast.Name) and root.id == me


def _is_context(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call makes or enters a context, or sets the mode, and so computes nothing."""
    if module.grad_switches.get(module.statement(call)) is not None:
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "enter_context":
        return True
    return no_grad_scope(module, call) or any(
        target.name.startswith("contextlib.") for target in module.resolve(call.func)
    )


def _wrapped(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> _Cover | None:
    """``self.forward = torch.no_grad()(self.forward)``, or the same in the class's body."""
    for statement, target, scope in _wrappers(module):
        parent = module.parent(statement)
        if parent is cls:
            if target != "forward":
                continue
        elif parent is module.tree:
            if target != f"{cls.name}.forward":
                continue
        elif module.method_class(parent) is not cls or target != f"{self_name(parent)}.forward":
            continue
        return _Cover(function, scope, statement)
    return None


def _by_class_decorator(module: ModuleFacts, cls: ast.ClassDef) -> Scope | None:
    """An own decorator of a class that puts its forward under a mode.

    ``torch.no_grad()`` itself on a class only covers making an object.
    """
    for decorator in cls.decorator_list:
        function = next((f for f in module.functions if f.name == module.source(decorator)), None)
        if function is None or not function.args.args:
            continue
        inner = {s.name: s for s in function.body if isinstance(s, ast.FunctionDef)}
        for statement in function.body:
            if not isinstance(statement, ast.Assign):
                continue
            if module.source(statement.targets[0]) != f"{function.args.args[0].arg}.forward":
                continue
            scope = wrapping(module, statement.value, statement)
            if isinstance(statement.value, ast.Name) and statement.value.id in inner:
                replacement = inner[statement.value.id]
                scope = decorator_scope(module, replacement)
                scope = scope or scope_of_returns(module, replacement)
            if scope is not None:
                return Scope(scope.mode, decorator, cls)
    return None


def _renamed(module: ModuleFacts) -> Iterator[tuple[ast.ClassDef, _Cover]]:
    """``forward = torch.no_grad()(_run)`` in a class, or the same of ``self`` in a method."""
    for statement, target, scope in _wrappers(module, other=True):
        parent = module.parent(statement)
        cls = parent if isinstance(parent, ast.ClassDef) else module.method_class(parent)
        assert scope.wraps is not None
        wrapped = scope.wraps.args[0]
        owner = f"{self_name(parent)}." if cls is not parent else ""
        name = module.source(wrapped).removeprefix(owner)
        for method in cls.body if cls is not None and target == f"{owner}forward" else ():
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and method.name == name:
                yield cast("ast.ClassDef", cls), _Cover(method, scope, statement)


def _wrappers(module: ModuleFacts, other: bool = False) -> Iterator[tuple[ast.Assign, str, Scope]]:
    """Every ``x.forward = mode(x.forward)``: the statement, ``x.forward``, and the scope.

    With ``other``, what is wrapped is something else.
    """
    for statement in module.statements:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        arguments = statement.value.args
        target = module.source(statement.targets[0])
        if len(arguments) != 1 or not target.endswith("forward"):
            continue
        if (module.source(arguments[0]) != target) is not other:
            continue
        scope = wrapping(module, statement.value, statement)
        if scope is not None:
            yield statement, target, scope


def _instances(module: ModuleFacts) -> Iterator[Finding]:
    """``model.forward = torch.no_grad()(model.forward)``, where the same model is trained."""
    if not _wraps(module):
        return
    for statement, target, scope in _wrappers(module):
        name = target.rpartition(".")[0]
        function = module.function(statement) or module.tree
        if not name.isidentifier() or name == "self":
            continue
        if not _learns_by(module, function, name, statement.lineno):
            continue
        text = module.source(scope.node)
        message = (
            f"`{text}` around `{target}`, which is trained: nothing that it computes has a "
            "gradient."
        )
        removal = _removal(module, _Cover(cast("FunctionNode", function), scope, statement))
        fix = Fix(f"Leave {target} as it is", tuple(removal))
        fixes = dict.fromkeys(STRATEGIES, fix) if removal else {}
        yield module.finding("TRN201", message, scope.node, fixes)


def _learns_by(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    name: str,
    line: int = 0,
    depth: int = 0,
) -> bool:
    """Whether backward is called on what a model computes, behind a line or where it is handed."""
    if is_reference(name):
        return False
    if _is_differentiated(module, function, name, line):
        return True
    return depth < _MAX_CALLS and any(
        _learns_by(module, other, known, behind, depth + 1)
        for other, known, behind in _handed_on(module, function, name, line)
    )


_MAX_CALLS = 2


def _handed_on(
    module: ModuleFacts, function: FunctionNode | ast.Module, name: str, line: int
) -> Iterator[tuple[FunctionNode | ast.Module, str, int]]:
    """Who else in the file has a model, by which name, and from which line on.

    Functions that it is given to behind a line; callers that it came from, or that get it back.
    """
    for call in module.calls:
        caller = module.function(call) or module.tree
        callee = _function_named(module, call)
        if callee is None or callee is caller:
            continue
        if caller is function and call.lineno > line:
            for parameter in parameters(callee.args):
                given = module.project.argument(module, callee, call, parameter.arg)
                if isinstance(given, ast.Name) and given.id == name:
                    yield callee, parameter.arg, 0
        elif callee is function:
            given = module.project.argument(module, callee, call, name)
            made = module.statement(call)
            targets = made.targets if isinstance(made, ast.Assign) else []
            for known in (given, *targets):
                if isinstance(known, ast.Name):
                    yield caller, known.id, call.lineno
            if _gives_back(function, name):
                yield from _as_argument(module, call)


def _as_argument(
    module: ModuleFacts, call: ast.Call
) -> Iterator[tuple[FunctionNode | ast.Module, str, int]]:
    """The function of the file that gets what a call returns: ``train(freeze(model))``."""
    outer = module.parent(call)
    if isinstance(outer, ast.keyword):
        outer = module.parent(outer)
    user = _function_named(module, outer) if isinstance(outer, ast.Call) else None
    if user is not None and isinstance(outer, ast.Call):
        for parameter in parameters(user.args):
            if module.project.argument(module, user, outer, parameter.arg) is call:
                yield user, parameter.arg, 0


def _gives_back(function: FunctionNode | ast.Module, name: str) -> bool:
    return any(
        isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id == name
        for node in own_nodes(function)
    )


def _function_named(module: ModuleFacts, call: ast.Call) -> FunctionNode | None:
    """The function of the file that a call by name runs."""
    if not isinstance(call.func, ast.Name):
        return None
    nodes = [b.node for b in module.names.visible(call.func)]
    found = nodes[0] if len(nodes) == 1 else None
    return found if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def _is_differentiated(
    module: ModuleFacts, function: FunctionNode | ast.Module, name: str, line: int
) -> bool:
    """Whether backward is called, behind a line, on what a model and no other computes."""
    values = [
        (value, module.statement(call))
        for value, call in backward_values(module, function)
        if call.lineno > line
    ]
    calls = [
        step.node
        for step in Graph(module, function).back_from(values)
        if isinstance(step.node, ast.Call) and step.cut is None
    ]
    own = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]
    return bool(own) and not any(may_learn(module, call) for call in calls if call not in own)


# -- TRN201: forward ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Start:
    """A function that starts inference; ``scoped`` where it has a scope of its own already.

    ``any_model`` says that it runs what it was given, ``runs`` names the classes of what it runs
    otherwise; empty where that does not show.
    """

    path: str
    line: int
    label: str
    scoped: bool
    any_model: bool
    runs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Moved:
    """A forward that switches gradients off: ``mode(arguments)``."""

    path: str
    forward: str
    mode: str
    arguments: str
    classes: frozenset[str]


def _starts(module: ModuleFacts) -> tuple[_Start, ...]:
    return tuple(
        _Start(
            *(module.path, f.lineno, _label(module, f)),
            *(_is_scoped(module, f), _runs_any_model(module, f), _classes_run(module, f)),
        )
        for f in _inference(module)
    )


def _runs_any_model(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function runs a model that it, or its object, was given: not one made here."""
    me = self_name(function)
    flow = module.flow(function)
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not runs_model(call, me):
            continue
        node = _model_of(call)
        if isinstance(node, ast.Name) and node.id in flow.parameters and node.id != me:
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            cls = module.names.self_class(node.value)
            made = module.names.attributes(cls).get(node.attr, ()) if cls is not None else ()
            if any(_comes_from_outside(module, binding.value) for binding in made):
                return True
    return False


def _model_of(call: ast.Call) -> ast.expr:
    """What a call runs: ``model`` of ``model(x)`` and of ``model.forward(x)``."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "forward":
        return function.value
    return function


def _comes_from_outside(module: ModuleFacts, value: ast.expr | None) -> bool:
    """Whether a name is a parameter, or is made of what its function does not show."""
    if not isinstance(value, ast.Name):
        return False
    flow = module.flow(module.function(value) or module.tree)
    made = flow.only_definition(value.id, module.statement(value))
    return made is None or made.is_parameter or not isinstance(made.value, ast.Call)


def _classes_run(module: ModuleFacts, function: FunctionNode) -> frozenset[str]:
    """The names of the classes whose objects a function runs; empty where one does not show."""
    me, flow = self_name(function), module.flow(function)
    names: set[str] = set()
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not runs_model(call, me):
            continue
        node = _model_of(call)
        cls = module.method_class(function)
        made: list[ast.expr | None] = []
        if isinstance(node, ast.Name) and node.id == me and cls is not None:
            names |= _names_of(module, cls)
            continue
        if isinstance(node, ast.Name):
            made = [d.value for d in flow.reaching(node.id, module.statement(call))]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = module.names.self_class(node.value)
            found = module.names.attributes(owner).get(node.attr, ()) if owner is not None else ()
            made = [_made_of(module, binding.value) for binding in found]
        called = {last_name(v.func) if isinstance(v, ast.Call) else "" for v in made}
        if not called or not all(name[:1].isupper() for name in called):
            return frozenset()
        names |= called
    return frozenset(names)


def _made_of(module: ModuleFacts, value: ast.expr | None) -> ast.expr | None:
    """The call behind a name: ``model = LlamaModel(config)``, then ``self.model = model``."""
    if not isinstance(value, ast.Name):
        return value
    flow = module.flow(module.function(value) or module.tree)
    made = flow.only_definition(value.id, module.statement(value))
    return made.value if made is not None else None


def _names_of(module: ModuleFacts, cls: ast.ClassDef) -> frozenset[str]:
    """The name of a class, those of its bases, and of the classes of its file that hold one."""
    names = {cls.name, *(last_name(base) for base in cls.bases)} - {"Module", ""}
    holders = [cls.name]
    for name in holders:
        for other in module.classes:
            if other.name not in holders and f"{name}(" in module.source(other):
                holders.append(other.name)
    return frozenset(names | set(holders))


def _may_run(project: Project, start: _Start, forward: str, classes: frozenset[str]) -> bool:
    """Whether a start of inference may run the model of another file, by its ``classes``.

    A library has more models than one: imports have to tie the two together, or they stand side by
    side and the start runs what it is given.
    """
    if not start.any_model and start.runs and start.runs.isdisjoint(classes):
        return False
    beside = start.any_model and Path(start.path).parent == Path(forward).parent
    return beside or project.linked(start.path, forward)


def _inference(module: ModuleFacts) -> list[FunctionNode]:
    """The functions of a file that start inference, and that no loss is computed by."""
    return [f for f in inference_entries(module) if not trained_through(module, f)]


def _scopes(module: ModuleFacts) -> tuple[_Moved, ...]:
    found = []
    for cover in _covers(module):
        flat = _flat_output(module, cover.function)
        if flat is not None and flat[2]:
            continue  # it stays
        node = cover.scope.node
        call = node.func if isinstance(node, ast.Call) else node
        mode, arguments = cover.scope.mode, module.source(node)[len(module.source(call)) :] or "()"
        if mode == "inference_mode" and _keeps_tensors(module):
            mode, arguments = "no_grad", "()"
        owner = module.method_class(cover.function)
        classes = _names_of(module, owner) if owner is not None else frozenset()
        label = _label(module, cover.function)
        found.append(_Moved(module.path, label, mode, arguments, classes))
    return tuple(found)


def _keeps_tensors(module: ModuleFacts) -> bool:
    """Whether a forward keeps what it computes: ``self.cache = self.cache.to(x)``."""
    for statement in module.statements:
        if not isinstance(statement, ast.Assign):
            continue
        function = module.function(statement)
        if function is not None and is_forward(function):
            if any(
                isinstance(t, ast.Attribute)
                and isinstance(t.value, ast.Name)
                and t.value.id == "self"
                for t in statement.targets
            ):
                return True
    return False


@once
def _gives_tensors(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function may give tensors to its caller: what it returns is not all numbers."""
    gradients = Gradients(module, function)
    yields = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(function))
    return yields or not all(value.plain for value in gradients.returned())


def _at(module: ModuleFacts, function: FunctionNode, scope: Scope) -> str:
    """A scope of a forward as it stands on a function that starts inference."""
    text = module.source(scope.node)
    if _keeps_tensors(module) or _gives_tensors(module, function):
        return _softened(module, scope, text)
    return text


def _softened(module: ModuleFacts, scope: Scope, text: str) -> str:
    """The scope at a place whose tensors outlive it: ``no_grad`` for ``inference_mode``.

    Tensors made under inference_mode cannot be written to in training, nor saved for backward:
    ids that ``generate`` gives are what a policy is trained on next.
    """
    from ..rewrite.layout import bound_at_top

    if scope.mode != "inference_mode":
        return text
    torch = bound_at_top(module, "torch")
    name = f"{torch}.no_grad" if torch is not None else bound_at_top(module, "torch.no_grad")
    return f"{name}()" if name is not None else text


def _label(module: ModuleFacts, function: FunctionNode) -> str:
    cls = module.method_class(function)
    return f"{cls.name}.{function.name}" if cls is not None else function.name


def _is_scoped(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether every run of the model in a function has gradients switched off already."""
    if decorator_scope(module, function) is not None or _is_off_on_import(module):
        return True
    me = self_name(function)
    runs = [c for c in ast.walk(function) if isinstance(c, ast.Call) and runs_model(c, me)]
    return bool(runs) and all(scope_inside(module, call, function) for call in runs)


def _is_off_on_import(module: ModuleFacts) -> bool:
    """Whether importing the file switches gradients off: no function of it needs a scope."""
    switched = (module.grad_switches.get(s) for s in module.tree.body)
    return any(found is not None and found.mode is not None for found in switched)


def _forward(module: ModuleFacts, cover: _Cover, moved: Scope, options: Options) -> Finding:
    from ..rewrite.scopes import can_decorate, with_decorator

    function, node = cover.function, cover.scope.node
    text = module.source(node)
    label = _label(module, function)
    where = f"`@{text}` on `{label}`" if _is_decorator(cover) else f"`{text}` around `{label}`"
    message = (
        f"{where}: nothing computed there has a gradient, so no parameter of the model learns."
    )
    flat = _flat_output(module, function)
    if flat is not None:
        name, made, used = flat
        message += (
            f" Its `{name}` (line {made.lineno}) could not pass one on in any case: a loss needs "
            "what that is made from."
        )
        if used:  # one half of a repair would look like the whole
            return module.finding("TRN201", message, node)
    parts = [_Cover(f, scope) for f, scope in scoped_methods(module, function, cover.scope)]
    follow = _removal if options.callers_decide else _follow_training
    followed_too = [follow(module, part) for part in parts]
    if parts:
        listed = ", ".join(f"`{_label(module, part.function)}`" for part in parts)
        verb = "has" if len(parts) == 1 else "have"
        message += f" {listed}, which it trains through, {verb} a scope too."
    if not all(followed_too):  # one half of a repair again
        return module.finding("TRN201", message, node)
    own = _inference(module)
    cls = module.method_class(function) or module.method_class(module.function(function))
    classes = _names_of(module, cls) if cls is not None else frozenset()
    others = [
        start
        for found in module.project.summaries(module.path, _starts, _may_start)
        for start in found
        if _may_run(module.project, start, module.path, classes)
    ]
    look_at = ""
    if own or others:
        removal = _removal(module, cover)
        if not removal:
            return module.finding("TRN201", message, node)
        bare = [f for f in own if not _is_scoped(module, f)]
        edits = [
            *removal,
            *(with_decorator(module, f, _at(module, f, moved)) for f in bare if can_decorate(f)),
        ]
        for start_ in bare:
            if not can_decorate(start_):
                look_at = f"`{_label(module, start_)}` is async: put its work under {text}"
        for start in others:
            if not start.scoped and not _in_roots(module, start.path):
                place = f"{start.label} ({start.path}:{start.line})"
                look_at = f"put @{text} on {place}, which relies on the scope of this forward"
        if _is_called_beside(module, function):
            look_at = look_at or f"whoever else calls {label} now records a graph there"
        labels = [*(_label(module, f) for f in own), *(s.label for s in others)]
        places = ", ".join(dict.fromkeys(f"`{label}`" for label in labels))
        moves = bare or any(not s.scoped for s in others)
        verb = "move it to" if moves else "it stays on"
        message += f" Inference starts in {places}: {verb} there."
        title = f"Take @{text} off {label}" if _is_decorator(cover) else f"Take {text} off {label}"
    else:
        followed = follow(module, cover)
        if not followed:
            return module.finding("TRN201", message, node)
        edits = followed
        message += " Where inference starts does not show, so let it follow the training flag."
        title = f"Let {label} record gradients while training"
        chosen = options.callers_decide or options.flag == "training"
        if not chosen and not _is_evaluated(module, function):
            look_at = (
                "nothing here calls eval(): inference in training mode, as a new model is in, "
                "records a graph now"
            )
    if arrays := _to_numpy(module, function):
        where = ", ".join(arrays)
        numpy = f"numpy() is called on what {label} gives in {where}: put it under {text}"
        look_at = "; ".join(filter(None, (look_at, numpy)))
    edits = [*edits, *(edit for each in followed_too for edit in each)]
    fix = Fix(title, tuple(edits), Safety.UNSAFE if look_at else Safety.SAFE, look_at)
    return module.finding("TRN201", message, node, dict.fromkeys(STRATEGIES, fix))


def _is_called_beside(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function that a forward leaves its work to is called by something else, too."""
    if is_forward(function) or function.name == "__call__":
        return False
    callers = (module.function(call) for call in module.calls_named(function.name))
    return any(caller is None or not is_forward(caller) for caller in callers)


_EVALUATES = rb"\.eval\(\)|\.train\((?:mode\s*=\s*)?False\)"
_COMES_IN_EVAL_MODE = re.compile(r"PreTrainedModel|ModelMixin")
"""Base classes whose ``from_pretrained`` gives a model in eval mode."""


def _is_evaluated(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether the project shows that a model is in eval mode when it is used."""
    cls = module.method_class(function)
    bases = (module.source(base) for base in cls.bases) if cls is not None else ()
    return (
        any(_COMES_IN_EVAL_MODE.search(base) for base in bases)
        or re.search(_EVALUATES.decode(), module.text) is not None
        or module.project.says(module, _EVALUATES)
    )


def _has_arrays(data: bytes) -> bool:
    return b"numpy" in data


def _to_numpy(module: ModuleFacts, forward: FunctionNode) -> list[str]:
    """Where other files run the model without a scope and make arrays of what comes out."""
    places = [
        f"{other.path}:{call.lineno}"
        for other, call in module.project.calls_of(module, forward, _has_arrays, elsewhere=True)
        if _makes_array(other, call)
    ]
    if module.method_class(forward) is not None:
        given = module.project.summaries(module.path, _arrays_of_given_models, _runs_given_models)
        places += [place for each in given for place in each]
    return places


def _makes_array(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether NumPy gets at what a call of a model gives, with gradients on."""
    caller = module.function(call)
    if scope_around(module, call) is not None or _is_off_on_import(module):
        return False
    if caller is not None and (is_forward(caller) or is_inference_entry(module, caller)):
        return False
    if any(backward_values(module, caller or module.tree)):
        return False
    return ".numpy(" in module.source(caller or module.statement(call))


def _runs_given_models(data: bytes) -> bool:
    return b".numpy(" in data and (b"model" in data or b"net" in data)


def _arrays_of_given_models(module: ModuleFacts) -> tuple[str, ...]:
    """Where arrays are made of what a model gives that a function was given: it may be any."""
    return tuple(
        f"{module.path}:{call.lineno}"
        for call in module.calls
        if isinstance(call.func, ast.Name)
        and (function := module.function(call)) is not None
        and runs_model(call, None)
        and call.func.id in module.flow(function).parameters
        and _makes_array(module, call)
    )


def _is_decorator(cover: _Cover) -> bool:
    return cover.scope.owner is cover.function


def _in_roots(module: ModuleFacts, other: str) -> bool:
    """Whether the run that looks at ``module`` will look at another path too."""
    path = Path(other).absolute()
    for root in module.project.roots:
        base = root.absolute()
        if path == base or base in path.parents:
            return True
    return False


def _removal(module: ModuleFacts, cover: _Cover) -> list[Edit]:
    """Take the scope off the forward; an empty list where that is not possible."""
    from ..rewrite import scopes

    wraps, wrapper = cover.scope.wraps, cover.wrapper
    if isinstance(cover.scope.owner, ast.ClassDef):
        return []  # what else its decorator does, nobody knows
    if isinstance(wrapper, ast.Assign) and wraps is not None:
        if module.source(wrapper.targets[0]) == module.source(wraps.args[0]):
            edit = scopes.without_statement(module, wrapper)
            return [edit] if edit is not None else []
    return scopes.removal(module, cover.scope)


def _follow_training(module: ModuleFacts, cover: _Cover) -> list[Edit]:
    """Have the scope follow ``self.training``; around the body where it stood outside."""
    from ..rewrite import layout
    from ..rewrite.scopes import end_line

    function = cover.function
    nested = module.method_class(function) is None  # of a method, whose object it sees
    flag = training_flag(module, module.function(function) if nested else function)
    torch = layout.bound_at_top(module, "torch")
    if flag is None or torch is None:
        return []
    wanted = f"{flag} and {torch}.is_grad_enabled()"
    if cover.scope.mode == "inference_mode":
        scope = f"{torch}.inference_mode(not ({wanted}))"
    else:
        scope = f"{torch}.set_grad_enabled({wanted})"
    if isinstance(cover.scope.owner, ast.ClassDef):
        return []
    if not _is_decorator(cover) and cover.wrapper is None:
        if module.source(cover.scope.node).endswith("__enter__()"):
            return []
        return [Edit(module.start(cover.scope.node), module.end(cover.scope.node), scope)]
    removal = _removal(module, cover)
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    if not removal or not body:
        return []
    if not layout.owns_lines(module, body[0]) or not layout.owns_lines(module, body[-1]):
        return []
    ind, unit = module.indentation(body[0]), module.indent_unit
    # Comments above the first statement belong to it.
    first = with_comments(module, module.position(layout.line_start(module, body[0]))[0])
    start = module.line_starts[first - 1]
    inner = layout.indent(module, first, end_line(body[-1]), unit)
    text = f"{ind}with {scope}:{module.newline}{inner}"
    return [*removal, Edit(start, layout.line_end(module, body[-1]), text)]


# -- outputs that have no gradient anyway ---------------------------------------------------------


def _flat_output(module: ModuleFacts, function: FunctionNode) -> tuple[str, ast.expr, bool] | None:
    """An output that is a threshold or an index of what the model computes.

    Its name, what makes it, and whether a loss of this file is computed from it.
    """
    cls = module.method_class(function)
    trained = trained_submodules(module, cls) if cls is not None else frozenset[str]()
    for value, statement in results(function):
        for name, part in _parts(module, function, value, statement):
            graph = Graph(module, function)
            steps = graph.back_from([(part, statement)])
            learning = [s for s in steps if graph.attribute(s.node, s.at) in trained]
            cuts = [s.cut for s in learning if s.cut is not None and s.cut.scope is None]
            if cuts and len(cuts) == len(learning):
                return name, cuts[0].node, _is_in_loss(module, name)
    return None


def _parts(
    module: ModuleFacts, function: FunctionNode, value: ast.expr, statement: ast.stmt
) -> Iterator[tuple[str, ast.expr]]:
    """The named parts of a result: of a dict, of an output object."""
    if isinstance(value, ast.Name):
        definition = module.flow(function).only_definition(value.id, statement)
        if definition is not None and definition.value is not None:
            value = definition.value
    if isinstance(value, ast.Dict):
        for key, part in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, part
    elif isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg is not None:
                yield keyword.arg, keyword.value


def _is_in_loss(module: ModuleFacts, name: str) -> bool:
    """Whether a loss of this file is computed from an output of this name."""
    for call in module.calls:
        if LOSS_CALL.search(module.source(call.func)):
            for node in (n for argument in call.args for n in ast.walk(argument)):
                if isinstance(node, ast.Attribute) and node.attr == name:
                    return True
                if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                    if node.slice.value == name:
                        return True
    return False


# -- TRN203: where inference starts ---------------------------------------------------------------


def _entries(module: ModuleFacts, own: Scope | None) -> Iterator[Finding]:
    """Functions in this file that rely on a scope which another file's forward is about to lose.

    ``own`` is the scope that they get from a forward of this file, where one is to lose it too.
    """
    from ..rewrite.scopes import can_decorate

    lost = [
        scope
        for found in module.project.summaries(module.path, _scopes, _scopes_forward)
        for scope in found
    ]
    for function in _inference(module) if lost else ():
        if _is_scoped(module, function) or not can_decorate(function):
            continue
        runs = _runs_any_model(module, function), _classes_run(module, function)
        start = _Start(module.path, function.lineno, function.name, False, *runs)
        for scope in lost:
            if _may_run(module.project, start, scope.path, scope.classes):
                yield _entry(module, function, scope, own)
                break


def _entry(
    module: ModuleFacts, function: FunctionNode, scope: _Moved, own: Scope | None
) -> Finding:
    from ..rewrite import layout
    from ..rewrite.scopes import with_decorator

    edits: list[Edit] = []
    if own is not None:
        text = _at(module, function, own)
    else:
        torch = layout.bound_at_top(module, "torch")
        if torch is None:
            torch = "torch"
            edits.append(layout.import_edit(module, "import torch"))
        text = f"{torch}.{scope.mode}{scope.arguments}"
        if scope.mode == "inference_mode" and _gives_tensors(module, function):
            text = f"{torch}.no_grad()"
    edits.insert(0, with_decorator(module, function, text))
    message = (
        f"`{function.name}` relies on `{scope.forward}` to switch gradients off; that scope "
        "belongs here."
    )
    fix = Fix(f"Put @{text} on {function.name}", tuple(edits))
    return module.finding("TRN203", message, head(function), dict.fromkeys(STRATEGIES, fix))
