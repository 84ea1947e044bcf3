"""An autograd formula for a custom operator whose body is differentiable PyTorch.

The body moves into a function of its own, which the operator calls, and which backward runs anew
under autograd.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..catalog import Schema
from ..facts import ModuleFacts
from ..facts.names import placed
from ..facts.operators import has_formula, operator_of
from ..facts.walk import walk
from ..findings import Edit, Fix
from ..releases import Release
from . import layout
from .autograd import CannotAttach
from .branch import Vocabulary
from .own_function import Forward, OwnFunction
from .template import fresh

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_LISTS = re.compile(r"\b(list|List|Sequence|Iterable|tuple|Tuple)\b", re.IGNORECASE)
_OPTIONAL = re.compile(r"\b(Optional|None)\b")


class CannotRegister(Exception):
    """No formula can be written; the text says why."""


@dataclass(frozen=True)
class _Input:
    name: str
    tensor: bool
    optional: bool
    several: bool = False
    """Whether it is a list of tensors."""
    by_name: bool = False


def fix(module: ModuleFacts, function: FunctionNode) -> Fix:
    """Split a function that ``torch.library.custom_op`` decorates, and register its formula."""
    if function not in module.tree.body or len(function.decorator_list) != 1:
        raise CannotRegister("it is not a plain function of the module")
    assert function.returns is not None
    several = _several(ast.unparse(function.returns))
    native = _free(module, f"{function.name}_native")
    blocks = _formula(module, function, _inputs(function), native, several)
    blocks.insert(0, _wrapper(module, function, native))
    blocks.append(_registration(module, f"{function.name}.register_autograd(", function.name))
    edits = [*_renamed(module, function, native), _after(module, function, blocks)]
    return Fix(f"Register an autograd formula for `{function.name}`", tuple(edits))


def with_inner(module: ModuleFacts, function: FunctionNode, outer: Fix) -> Fix:
    """A fix for an operator, with those for operators of the file that its function calls.

    The formula runs the function's body under autograd, which then meets these.
    """
    edits = dict.fromkeys(outer.edits)
    for inner in _called(module, function, {function}):
        name, _ = operator_of(module, inner)
        if name is not None and not has_formula(module, inner, name):
            edits.update(dict.fromkeys(fix(module, inner).edits))
    return replace(outer, edits=tuple(edits))


def _called(
    module: ModuleFacts, function: FunctionNode, known: set[FunctionNode]
) -> Iterator[FunctionNode]:
    """The functions of the file that one calls, and those that these call."""
    for node in (n for s in function.body for n in walk(s) if isinstance(n, ast.Call)):
        names = {target.name for target in module.resolve(node.func)}
        for each in module.functions:
            if each not in known and f"{module.module_name}.{each.name}" in names:
                known.add(each)
                yield each
                yield from _called(module, each, known)


def library_fix(
    module: ModuleFacts, function: FunctionNode, name: str, schema: Schema, registered: ast.stmt
) -> Fix:
    """Register a formula for an operator of a ``Library`` that a function implements.

    ``registered`` is the statement that says so.
    """
    if registered not in module.tree.body or function not in module.tree.body:
        raise CannotRegister("it is not a plain function of the module")
    own = placed(function)
    if function.args.kwonlyargs or any(a.kwarg_only for a in schema.arguments):
        raise CannotRegister("it has arguments that are passed by name only")
    if len(own) != len(schema.arguments):
        raise CannotRegister("its function does not fit its schema")
    inputs = []
    for parameter, argument in zip(own, schema.arguments, strict=True):
        if "Tensor[" in argument.type:
            raise CannotRegister(f"`{parameter}` is a list of tensors")
        inputs.append(_Input(parameter, argument.is_tensor, argument.is_optional))
    if any("[" in returned for returned in schema.returns):
        raise CannotRegister("it returns a list")
    blocks = _formula(module, function, inputs, function.name, len(schema.returns) > 1)
    call = f'{layout.bound_at_top(module, "torch")}.library.register_autograd("{name}", '
    blocks.append(_registration(module, call, function.name))
    edit = _after(module, registered, blocks)
    return Fix(f"Register an autograd formula for `{name}`", (edit,))


def kernel_fix(
    module: ModuleFacts,
    forward: Forward,
    name: str,
    registered: ast.stmt,
    releases: Sequence[Release] = (),
    *,
    own: bool,
) -> Fix:
    """Register the formula of the kernel that a function runs.

    ``own`` says that the function itself has become the operator, which ``registered`` states;
    ``releases`` are those of the project.
    """
    function = forward.node
    if registered not in module.tree.body or function not in module.tree.body:
        raise CannotRegister("it is not a plain function of the module")
    torch = layout.bound_at_top(module, "torch")
    if torch is None:
        raise CannotRegister("the file does not import torch")
    setup = _free(module, f"{function.name}_setup_context")
    backward = _free(module, f"{function.name}_backward")
    try:
        kernel = OwnFunction(module, forward)
        vocabulary = Vocabulary(module, [kernel.backward.use], releases=releases)
        blocks, helpers = kernel.formula(vocabulary, setup, backward)
        lines = [line for block in blocks for line in block]
        vocabulary.refuse_shadowed(function, "\n".join(lines))
        support = vocabulary.support(lines, list(helpers))
    except (CannotAttach, layout.CannotPlace) as error:
        raise CannotRegister(str(error)) from None
    start = f"{function.name}.register_autograd("
    if not own:
        start = f'{torch}.library.register_autograd("{name}", '
    blocks.append(_registration(module, start, function.name))
    fix = Fix(
        f"Register an autograd formula for `{name}`",
        (_after(module, registered, blocks), *support),
    )
    return fix.unsafe(forward.look_at) if forward.look_at else fix


def _formula(
    module: ModuleFacts,
    function: FunctionNode,
    inputs: list[_Input],
    native: str,
    several: bool,
) -> list[list[str]]:
    """The functions that keep the inputs, and that give the gradients."""
    torch = layout.bound_at_top(module, "torch")
    if torch is None:
        raise CannotRegister("the file does not import torch")
    own = {i.name for i in inputs}
    if function.args.vararg or function.args.kwarg:
        raise CannotRegister("it takes any number of arguments")
    if own & {
        "keyword_only_inputs",
        "ctx",
        "grad",
        "grads",
        "inputs",
        "output",
        "out",
        "outputs",
        torch,
    }:
        raise CannotRegister("its parameters have names that the formula needs")
    return [
        _setup(module, inputs, _free(module, f"{function.name}_setup_context")),
        _backward(
            module, inputs, _free(module, f"{function.name}_backward"), native, torch, several
        ),
    ]


def _several(returns: str) -> bool:
    if _LISTS.search(returns) is None:
        return False
    if "tuple" not in returns.lower():
        raise CannotRegister("it returns a list")
    return True


def _free(module: ModuleFacts, name: str) -> str:
    while layout.is_taken(module, name):
        name += "_"
    return name


def _registration(module: ModuleFacts, call: str, name: str) -> list[str]:
    backward, setup = _free(module, f"{name}_backward"), _free(module, f"{name}_setup_context")
    line = f"{call}{backward}, setup_context={setup})"
    return layout.fit(line, "", module.indent_unit, layout.width(module))


def _after(module: ModuleFacts, statement: ast.stmt, blocks: list[list[str]]) -> Edit:
    newline, end = module.newline, layout.line_end(module, statement)
    return Edit(end, end, "".join(newline * 3 + newline.join(block) for block in blocks))


def _inputs(function: FunctionNode) -> list[_Input]:
    arguments = function.args
    inputs: list[_Input] = []
    for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        text = ast.unparse(a.annotation).strip("'\"") if a.annotation is not None else ""
        tensor, by_name = "Tensor" in text, a in arguments.kwonlyargs
        if tensor and by_name:
            raise CannotRegister(
                f"`{a.arg}` is a tensor that is passed by name only, which can have no gradient"
            )
        several = tensor and _LISTS.search(text) is not None
        optional = _OPTIONAL.search(text) is not None
        if several and (optional or any(i.several for i in inputs)):
            raise CannotRegister(f"`{a.arg}` is a list of tensors")
        inputs.append(_Input(a.arg, tensor, optional, several, by_name))
    return inputs


def _renamed(module: ModuleFacts, function: FunctionNode, native: str) -> list[Edit]:
    """The author's function without its decorator, under another name."""
    start = layout.line_start(module, function)
    begin = module.start(function)
    at = module.text.index(function.name, begin + len("def"))
    return [Edit(start, begin, ""), Edit(at, at + len(function.name), native)]


def _wrapper(module: ModuleFacts, function: FunctionNode, native: str) -> list[str]:
    """The operator, as it was declared, over that function."""
    assert function.returns is not None
    decorator = module.source(function.decorator_list[0])
    begin = module.start(function)
    head = module.text[begin : module.end(function.returns)]
    given = ", ".join(
        [
            *placed(function),
            *(f"{a.arg}={a.arg}" for a in function.args.kwonlyargs),
        ]
    )
    unit = module.indent_unit
    return [
        *f"@{decorator}".splitlines(),
        *f"{head}:".splitlines(),
        *layout.fit(f"return {native}({given})", unit, unit, layout.width(module)),
    ]


def _setup(module: ModuleFacts, inputs: list[_Input], name: str) -> list[str]:
    unit, width = module.indent_unit, layout.width(module)
    placed = [i for i in inputs if not i.by_name]
    named = [i for i in inputs if i.by_name]
    targets = ", ".join(i.name if i.tensor else f"ctx.{i.name}" for i in placed)
    lines = [
        f"{targets}{',' if len(placed) == 1 else ''} = inputs",
        *(f'ctx.{i.name} = keyword_only_inputs["{i.name}"]' for i in named),
        f"ctx.save_for_backward({_listed(inputs)})",
    ]
    head = f"def {name}(ctx, inputs, {'keyword_only_inputs, ' if named else ''}output):"
    return [head, *(f for line in lines for f in layout.fit(line, unit, unit, width))]


def _listed(inputs: list[_Input]) -> str:
    """The tensors among the inputs; those of a list come last."""
    tensors = sorted((i for i in inputs if i.tensor), key=lambda i: i.several)
    return ", ".join(f"*{i.name}" if i.several else i.name for i in tensors)


def _backward(
    module: ModuleFacts, inputs: list[_Input], name: str, native: str, torch: str, several: bool
) -> list[str]:
    unit, width = module.indent_unit, layout.width(module)
    unpacked = _listed(inputs)
    if len([i for i in inputs if i.tensor]) == 1:
        unpacked = f"({unpacked},)" if not unpacked.startswith("*") else f"{unpacked},"
    given = ", ".join(
        i.name if i.tensor else f"{i.name}=ctx.{i.name}" if i.by_name else f"ctx.{i.name}"
        for i in inputs
    )
    lines: list[tuple[int, str]] = [(1, f"{unpacked} = ctx.saved_tensors")]
    lines.append((1, f"with {torch}.enable_grad():"))
    # One tensor may be given twice; and a second derivative goes back through the inputs.
    for each in inputs:
        n = each.name
        if each.several:
            lines.append((2, f"{n} = [t.view_as(t) for t in {n}]"))
        elif each.tensor:
            lines.append((2, f"{n} = {_unless_none(each, f'{n}.view_as({n})')}"))
    result = "outputs" if several else "out"
    lines.append((2, f"{result} = {native}({given})"))
    optional = any(each.optional for each in inputs if each.tensor)
    asked = "t is not None and t.requires_grad" if optional else "t.requires_grad"
    listed = _listed(inputs)
    listed = f"({listed},)" if len([i for i in inputs if i.tensor]) == 1 else f"({listed})"
    taken = {"ctx", result, *(i.name for i in inputs)}
    wanted, found, of = (fresh(name, taken) for name in ("wanted", "found", "gradient"))
    lines.append((1, f"{wanted} = [t for t in {listed} if {asked}]"))
    grads = "grad"
    if several:
        pairs = f"[(o, g) for o, g in zip({result}, grads) if o.requires_grad]"
        lines.append((1, f"{result}, grads = zip(*{pairs})"))
        grads = "grads"
    again = f"allow_unused=True, create_graph={torch}.is_grad_enabled()"
    lines.append((1, f"{found} = {torch}.autograd.grad({result}, {wanted}, {grads}, {again})"))
    lines.append((1, f"{of} = dict(zip({wanted}, {found}))"))
    gradients = [_gradient(each, of) for each in inputs if not each.by_name]
    lines.append((1, f"return {', '.join(gradients)}"))
    text = [f"def {name}(ctx, {'*grads' if several else 'grad'}):"]
    for depth, line in lines:
        text += layout.fit(line, unit * depth, unit, width)
    return text


def _gradient(each: _Input, of: str) -> str:
    if each.several:
        return f"[{of}.get(t) for t in {each.name}]"
    return f"{of}.get({each.name})" if each.tensor else "None"


def _unless_none(each: _Input, text: str) -> str:
    return f"None if {each.name} is None else {text}" if each.optional else text
