"""Where a gradient is not wanted: behind a test of the grad mode, under ``no_grad``, in a backward.

A fused call in such a place is right as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeGuard

from .discrete import gives_integers
from .getters import property_behind
from .grad_mode import no_grad_scope, switched_before
from .memo import once
from .names import is_none, last_name, self_name
from .put_together import is_put_together
from .trainable import holds_weights
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_KERNEL_DECORATORS = (
    "torch.library.custom_op",
    "torch.library.register_fake",
    "torch.library.register_kernel",
    "torch.library.impl",
    "torch.library.triton_op",
    "triton.jit",
    "triton.autotune",
    "triton.heuristics",
)
_REGISTERING = ("register_fake", "register_kernel", "register_autograd")
"""The same, of an operator that is at hand, or by a name that a project gives them."""


def gradient_unwanted(module: ModuleFacts, node: ast.AST) -> bool:
    """Whether the code at ``node`` only runs where no gradient is wanted, or is itself a kernel."""
    if _describes_graphs(module):
        return True
    child: ast.AST = node
    for parent in module.ancestors(node):
        if _is_asked(module, parent, child):
            return True
        if isinstance(parent, (ast.With, ast.AsyncWith)) and child in parent.body:
            if any(no_grad_scope(module, item.context_expr, parent) for item in parent.items):
                return True
        if isinstance(child, ast.stmt) and module.grad_switches and parent is not module.tree:
            switched = switched_before(module, parent, child)
            if switched is not None and switched[0] is not None:
                return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and child in parent.body:
            scoped = any(no_grad_scope(module, d, parent) for d in parent.decorator_list)
            if not is_forward(parent):
                if scoped or is_inference_entry(module, parent):
                    return True
            elif scoped:  # on a model's forward it is misplaced, on a sampler's it is right
                cls = module.method_class(parent)
                if cls is None or gives_integers(module, parent):
                    return True
                if not holds_weights(module, cls) and not is_put_together(module, cls):
                    return True
        child = parent
    return False


def is_behind_test(module: ModuleFacts, node: ast.AST) -> bool:
    """Whether the code there asked first, or is itself a kernel: a scope around it is no test."""
    child: ast.AST = node
    for parent in module.ancestors(node):
        if _is_asked(module, parent, child):
            return True
        child = parent
    return False


def _is_asked(module: ModuleFacts, parent: ast.AST, child: ast.AST) -> bool:
    """Whether ``child`` is the part of ``parent`` that runs where no gradient is wanted."""
    if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
        in_body = child in parent.body if isinstance(parent.body, list) else child is parent.body
        if implies_unwanted(module, parent.test, in_body):
            return True
    if isinstance(child, ast.stmt) and _left_before(module, parent, child):
        return True
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(parent, functions) and child in parent.body and _is_kernel(module, parent)


@once
def _describes_graphs(module: ModuleFacts) -> bool:
    """Whether a file is a pass of a compiler: what it calls is a pattern, looked for in graphs."""
    return "torch._inductor.pattern_matcher" in module.usual


def _left_before(module: ModuleFacts, parent: ast.AST, child: ast.stmt) -> bool:
    """``if torch.is_grad_enabled(): return ...`` stands before ``child`` in its block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and child in block:
            left = _left_at(module, parent, name)
            return left is not None and left < (child.lineno, child.col_offset)
    return False


@once
def _left_at(module: ModuleFacts, parent: ast.AST, name: str) -> tuple[int, int] | None:
    """Where the first statement of a block is behind which no gradient is wanted."""
    for each in getattr(parent, name):
        left = (ast.Return, ast.Raise, ast.Continue, ast.Break)
        if _leaves(module, each, left) or _is_refused(module, each):
            return each.lineno, each.col_offset
    return None


def _leaves(module: ModuleFacts, statement: ast.stmt, by: tuple[type[ast.stmt], ...]) -> bool:
    """Whether what comes after a statement runs only where no gradient is wanted."""
    if isinstance(statement, ast.Assert):
        return implies_unwanted(module, statement.test, True)
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and isinstance(statement.body[-1], by)
        and implies_unwanted(module, statement.test, False)
    )


def _is_refused(module: ModuleFacts, statement: ast.stmt) -> bool:
    """``refuse_gradients(x)``: a call of a function of the file that raises where one is wanted."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return False
    return any(
        module.parent(function) is module.tree and _leaves(module, each, (ast.Raise,))
        for function in module.functions_named(call.func.id)
        for each in function.body
    )


def implies_unwanted(module: ModuleFacts, test: ast.expr, value: bool, depth: int = 0) -> bool:
    """Whether ``test`` being ``value`` means that no gradient is wanted."""
    if depth > 4:
        return False

    def each(nodes: Sequence[ast.expr]) -> list[bool]:
        return [implies_unwanted(module, n, value, depth + 1) for n in nodes]

    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return implies_unwanted(module, test.operand, not value, depth + 1)
    if isinstance(test, ast.BoolOp):
        parts = each(_beside_none(test.values))
        # One conjunct decides a true "and" or a false "or"; otherwise all must agree.
        return any(parts) if isinstance(test.op, ast.And) is value else all(parts)
    if isinstance(test, ast.Compare):
        told = _compared_to(test)
        if told is None:
            return False
        return implies_unwanted(module, test.left, value is told, depth + 1)
    if isinstance(test, ast.Attribute):
        if test.attr in ("requires_grad", "training"):
            return not value
        given = _only_value(property_behind(module, test))
        return given is not None and implies_unwanted(module, given, value, depth + 1)
    if isinstance(test, ast.Name):
        if test.id == "training":
            return not value
        function = module.function(test)
        definition = (
            module.flow(function).only_definition(test.id, module.statement(test))
            if function is not None
            else None
        )
        if definition is None or definition.value is None or definition.index is not None:
            return False
        return implies_unwanted(module, definition.value, value, depth + 1)
    if isinstance(test, ast.Call):
        if isinstance(test.func, ast.Name) and test.func.id in ("any", "all") and test.args:
            inner = test.args[0]
            if isinstance(inner, (ast.GeneratorExp, ast.ListComp)):
                return implies_unwanted(module, inner.elt, value, depth + 1)
            if isinstance(inner, (ast.Tuple, ast.List)):
                return all(each(inner.elts))
        if module.is_name(test.func, "torch.is_grad_enabled"):
            return not value
        if module.is_name(test.func, "torch.is_inference_mode_enabled"):
            return value
        if isinstance(test.func, ast.Attribute) and test.func.attr == "is_inference":
            return value
        given = _only_value(_function_behind(module, test.func))
        return given is not None and implies_unwanted(module, given, value, depth + 1)
    return False


def _compared_to(test: ast.Compare) -> bool | None:
    """What the left of ``x.requires_grad is False`` is where that holds."""
    right = test.comparators[0] if len(test.comparators) == 1 else None
    if not isinstance(right, ast.Constant) or not isinstance(right.value, bool):
        return None
    if isinstance(test.ops[0], (ast.Eq, ast.Is)):
        return right.value
    return not right.value if isinstance(test.ops[0], (ast.NotEq, ast.IsNot)) else None


def _function_behind(module: ModuleFacts, callee: ast.expr) -> ast.FunctionDef | None:
    """The undecorated method of the object itself, or function of the file, that is called."""
    found: list[ast.AST] = []
    if isinstance(callee, ast.Name):
        found = [binding.node for binding in module.names.visible(callee)]
    elif isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name):
        cls = module.names.self_class(callee.value)
        if cls is not None:
            found = [binding.node for binding in module.names.inherited(cls, callee.attr)]
    function = found[0] if len(found) == 1 else None
    if isinstance(function, ast.FunctionDef) and not function.decorator_list:
        return function
    return None


def _only_value(function: ast.FunctionDef | None) -> ast.expr | None:
    """What the one return of a function gives, at its end."""
    returned = [node for node in walk(function) if isinstance(node, ast.Return)] if function else []
    return returned[0].value if function and function.body[-1:] == returned else None


def _beside_none(values: Sequence[ast.expr]) -> list[ast.expr]:
    """The values but ``x is None`` and ``x is not None`` where ``x.requires_grad`` is one, too.

    What is None, or no tensor (``isinstance(x, torch.Tensor)``), wants no gradient.
    """
    asked = {ast.dump(n.value) for v in values for n in walk(v) if _asks_for_grad(n)}
    return [
        v
        for v in values
        if not (
            isinstance(v, ast.Compare)
            and isinstance(v.ops[0], (ast.Is, ast.IsNot))
            and is_none(v.comparators[0])
            and ast.dump(v.left) in asked
        )
        and not (
            isinstance(v, ast.Call)
            and last_name(v.func) in ("isinstance", "is_tensor")
            and v.args
            and ast.dump(v.args[0]) in asked
        )
    ]


def _asks_for_grad(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == "requires_grad"


def is_forward(function: FunctionNode) -> bool:
    """Whether a function is what ``module(...)`` runs."""
    return function.name == "forward" or function.name.startswith("forward_")


def _is_kernel(module: ModuleFacts, function: FunctionNode) -> bool:
    for decorator in function.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        names = {t.name for t in module.resolve(call)}
        if not names.isdisjoint(_KERNEL_DECORATORS):
            return True
        if last_name(call) in _REGISTERING or getattr(call, "attr", "") == "jit":
            return True
    cls = module.method_class(function)
    return cls is not None and is_autograd_function(module, cls)


def is_autograd_function(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a class derives from ``torch.autograd.Function``."""
    return any(
        module.is_name(base, "torch.autograd.Function", "torch.autograd.function.Function")
        for base in cls.bases
    )


_ENTRY = re.compile(
    r"(?!_?infer_(?:\w+_)?(?:plan|shape|schema|d?type|size|dim|device|config|name|task|format|layout)s?(?:_|$))"
    r"_?(generate|sample|predict|evaluate|inference|infer|complete|completion|chat|stream|"
    r"text_completion|chat_completion|beam_search|greedy_search|greedy_decode|profile|profile_run|"
    r"warm_?up|dummy_run|capture)(_\w+)?$"
)
_MODEL = re.compile(
    r"(?!_?(?:load|get|set|update|build|create|make|init|initialize|save|reset|export|prepare|setup|"
    r"register|wrap|unwrap|select|switch|activate|download|convert|compile|freeze|unfreeze|check|"
    r"validate|add|remove|delete|log|print|count)_)"
    r"(?:.*_)?(model|net|network|transformer|llm|lm|module|decoder|encoder)$"
)
"""Names of networks, and of functions that run one: not ``load_model``."""


def is_inference_entry(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function starts inference: it is called so, and it runs a model."""
    if not _ENTRY.match(function.name):
        return False
    me = self_name(function)
    runs = any(isinstance(node, ast.Call) and runs_model(node, me) for node in walk(function))
    return runs and not _is_part_of_forward(module, function)


_PART = re.compile(r"_?(?:predict|infer)_\w")
"""What a model does with its inputs, as often as it starts inference."""


@once
def _is_part_of_forward(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a forward of the same object goes on with what a method predicts.

    ``masks = self.predict_masks(x)``: what only hands that over may be there for inference.
    """
    cls = module.method_class(function)
    if cls is None or not _PART.match(function.name):
        return False
    return any(
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and module.names.self_class(call.func.value) is cls
        and (caller := module.function(call)) is not None
        and is_forward(caller)
        and not isinstance(module.parent(call), ast.Return)
        and not gradient_unwanted(module, call)
        for call in module.calls_named(function.name)
    )


def inference_entries(module: ModuleFacts) -> list[FunctionNode]:
    """The functions of a file that start inference."""
    return [f for f in module.functions if is_inference_entry(module, f)]


def runs_model(call: ast.Call, me: str | None) -> bool:
    """Whether a call runs a network: ``self(x)``, ``self.model(x)``, ``model.forward(x)``.

    ``me`` is the name of the method's own object.
    """
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr == "forward" or bool(_MODEL.match(function.attr))
    if isinstance(function, ast.Name):
        return function.id == me or bool(_MODEL.match(function.id))
    return False


_MAX_CALLERS = 4


def _has_functions(data: bytes) -> bool:
    return b"autograd.Function" in data


_REGISTERS = re.compile(r"(^|_)custom_op$")


def is_operator(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function is registered with the dispatcher, below which autograd records nothing.

    By a decorator or a call of a project's own: ``direct_register_custom_op(op_func=norm)``.
    """
    for decorator in function.decorator_list:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        if _REGISTERS.search(last_name(node)):
            return True
    return function.name in _registered(module)


_REGISTERED = re.compile(r"\bop_func=(\w+)|register_custom_op\(\s*(\w+)|\.impl\(([^()]*)")


@once
def _registered(module: ModuleFacts) -> frozenset[str]:
    """The names that a file hands to what registers operators."""
    found = _REGISTERED.findall(module.usual)
    names = {name for op_func, first, _ in found for name in (op_func, first)}
    return frozenset(names.union(*(re.findall(r", (\w+)", given) for _, _, given in found)))


@once
def serves_backward(module: ModuleFacts, function: FunctionNode, depth: int = _MAX_CALLERS) -> bool:
    """Whether only what has a backward of its own, or wants no gradient, calls a function."""
    if depth == 0:
        return False
    if (
        f"register_autograd({function.name}" in module.usual
        or f"op_func={function.name}" in module.usual
    ):
        return True
    stood_in_for = _stood_in_for(module, function)
    if stood_in_for is not None:
        return _is_called_for_backward(*stood_in_for, depth)
    return _is_called_for_backward(module, function, depth)


def _is_called_for_backward(module: ModuleFacts, function: FunctionNode, depth: int) -> bool:
    callers = 0
    for calls in (_calls_beside_functions, _calls_elsewhere):
        for other, call in calls(module, function):
            caller = other.function(call)
            if caller is function:
                continue
            callers += 1
            if gradient_unwanted(other, call):
                continue  # in an autograd.Function, a custom op, under no_grad
            if caller is None or not serves_backward(other, caller, depth - 1):
                return False
        if callers:
            return True
    return _is_given_to_functions(module, function)


def _is_given_to_functions(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a file with an ``autograd.Function`` hands a function on: ``apply(F, x, kernel)``."""
    name, project = function.name, module.project
    far = project.far_with(b"autograd.Function", module.path)
    files = chain(
        project.mentioning(module, name, containing=b"autograd.Function"),
        project.others(module, lambda data: name.encode() in data, far),
    )
    return any(
        isinstance(argument, ast.Name) and argument.id == name
        for other in files
        for call in other.calls
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    )


def _stood_in_for(
    module: ModuleFacts, function: FunctionNode
) -> tuple[ModuleFacts, FunctionNode] | None:
    """The function of the project that another one is another form of.

    ``@register(chunk_fwd, backend=...)`` says so of a function.  ``@register("chunk")`` says it of
    a class whose methods stand in for functions of their names: ``@dispatch def chunk_fwd(x)``.
    """
    from .layers import imported_function

    cls = module.method_class(function)
    if cls is not None and any(_registers(decorator) for decorator in cls.decorator_list):
        project, name = module.project, function.name.encode()
        far = project.far_with(b"@dispatch", module.path)
        files = chain(
            project.mentioning(module, function.name, containing=b"@dispatch"),
            project.others(module, lambda data: name in data, far),
        )
        for home in files:
            for each in home.functions_named(function.name):
                if home.parent(each) is home.tree and any(map(_dispatches, each.decorator_list)):
                    return home, each

    for decorator in function.decorator_list:
        if _registers(decorator):
            assert isinstance(decorator, ast.Call)
            first = decorator.args[0] if decorator.args else None
            if isinstance(first, (ast.Name, ast.Attribute)):
                return imported_function(module, first)
    return None


def _registers(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and "register" in last_name(decorator.func)


def _dispatches(decorator: ast.expr) -> bool:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return last_name(node).startswith("dispatch")


def _calls_elsewhere(
    module: ModuleFacts, function: FunctionNode
) -> Iterator[tuple[ModuleFacts, ast.Call]]:
    """The calls of a function in other files: of a helper, that of another helper."""
    return module.project.calls_of(module, function, elsewhere=True)


def _calls_beside_functions(
    module: ModuleFacts, function: FunctionNode
) -> Iterator[tuple[ModuleFacts, ast.Call]]:
    """The calls of a function in files with an ``autograd.Function``, and in its own."""
    project = module.project
    yield from project.calls_of(module, function, _has_functions)
    far = project.far_with(b"autograd.Function", module.path)
    if far:
        yield from project.calls_of(module, function, elsewhere=True, among=far)
