"""Which calls overwrite what they are given, other than methods: ``F.relu(x, inplace=True)``.

Functions and modules of torch are asked to by an argument, ``torch.relu_`` and ``nn.init`` by name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .memo import once
from .names import last_name
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts

_MODULES = {
    **dict.fromkeys("ReLU ReLU6 SiLU SELU Mish Hardswish Hardsigmoid".split(), 0),
    **dict.fromkeys("ELU CELU LeakyReLU AlphaDropout FeatureAlphaDropout".split(), 1),
    **dict.fromkeys("Dropout Dropout1d Dropout2d Dropout3d".split(), 1),
    **dict.fromkeys("Hardtanh RReLU Threshold".split(), 2),
}
_FUNCTIONS = {
    **dict.fromkeys("relu relu6 silu selu mish hardswish hardsigmoid".split(), 1),
    **dict.fromkeys("elu celu leaky_relu".split(), 2),
    **dict.fromkeys("dropout dropout1d dropout2d dropout3d hardtanh threshold".split(), 3),
    **dict.fromkeys("alpha_dropout feature_alpha_dropout".split(), 3),
    "rrelu": 4,
}
"""Where ``inplace`` stands among the arguments."""
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
_UNSAVED = frozenset("silu mish hardswish".split())
_OF_INIT = "torch.nn.init."
_METHOD = re.compile(r"_\s*\(")
_KEYWORD = re.compile(r"inplace\s*=\s*True")
_TRUE = re.compile(r"True\b(?<!\wTrue)")  # begins with what is quick to look for
_ASKED = re.compile(rf"\b(?:{'|'.join(_FUNCTIONS)})\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*$")
_MADE = re.compile(rf"\b(?:{'|'.join(_MODULES)})\([^()\n]*$")


def _signs(text: str) -> Iterator[int]:
    """Where a text may overwrite something by a call; each search begins with what is rare."""
    yield from (match.start() for match in _METHOD.finditer(text))
    yield from (match.start() for match in _KEYWORD.finditer(text))
    yield from _given_true(text, _ASKED)


def _given_true(text: str, before: re.Pattern[str]) -> Iterator[int]:
    """Where ``True`` stands, with such a beginning before it on its line."""
    for match in _TRUE.finditer(text):
        line = text.rfind("\n", 0, match.start()) + 1
        if before.search(text, line, match.start()) is not None:
            yield match.start()


def candidates(module: ModuleFacts) -> Iterator[int]:
    """The lines on which something may be overwritten by a call, methods included."""
    text = module.text
    for sign in _signs(text):
        yield module.position(sign)[0]
    names = {name for _, name in _attributes(module)}
    if names:
        for match in re.finditer(rf"\.(?:{'|'.join(map(re.escape, names))})\(", text):
            yield module.position(match.start())[0]


def overwritten(module: ModuleFacts, call: ast.Call) -> ast.expr | None:
    """The argument that a call of a function or of a module overwrites."""
    if not call.args or isinstance(call.args[0], ast.Starred):
        return None
    function = call.func
    name = last_name(function)
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        cls = module.names.self_class(function.value) if _attributes(module) else None
        if cls is not None and (cls, name) in _attributes(module):
            return call.args[0]
    if name.endswith("_") and not name.endswith("__"):
        return call.args[0] if _is_torchs(module, function) else None
    if name in _FUNCTIONS and not _drops_nothing(call, 1):
        if asks_in_place(call):  # whoever has an argument of this name means what torch does
            return call.args[0]
        if asks_in_place(call, _FUNCTIONS[name]) and _is_torchs(module, function):
            return call.args[0]
    return None


def asked_in_place(node: ast.expr) -> ast.expr | None:
    """The argument of ``F.silu(x, inplace=True)``, whose result is ``x`` and saved by nobody."""
    if isinstance(node, ast.Call) and node.args and last_name(node.func) in _UNSAVED:
        if not isinstance(node.args[0], ast.Starred) and asks_in_place(node):
            return node.args[0]
    return None


def initializes(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call is one of ``nn.init``, which autograd does not see: it runs under no_grad."""
    return any(target.name.startswith(_OF_INIT) for target in module.resolve(call.func))


def writes_in_place(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an expression makes a module of torch's that overwrites its input."""
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    if name == "Sequential" and node.args:
        return writes_in_place(module, node.args[0])
    if name not in _MODULES or not asks_in_place(node, _MODULES[name]) or _drops_nothing(node, 0):
        return False
    return any(target.name.startswith("torch.nn.") for target in module.resolve(node.func))


def without_asking(module: ModuleFacts, call: ast.Call) -> str | None:
    """The same call of a module or a function of torch's, not in place; None for others."""
    name = last_name(call.func)
    text = " ".join(module.source(call).split())
    if "#" in text or not (_is_torchs(module, call.func) or writes_in_place(module, call)):
        return None
    if name in _FUNCTIONS or name in _MODULES:
        for i, keyword in enumerate(call.keywords):
            if keyword.arg == "inplace":
                kept: list[ast.expr | ast.keyword] = [
                    *call.args,
                    *call.keywords[:i],
                    *call.keywords[i + 1 :],
                ]
                given = ", ".join(" ".join(_argument(module, each).split()) for each in kept)
                return f"{module.source(call.func)}({given})"
        at = {**_FUNCTIONS, **_MODULES}[name]
        given = ", ".join(" ".join(module.source(each).split()) for each in call.args[:at])
        return f"{module.source(call.func)}({given})" if not call.keywords else None
    if name.removesuffix("_") in _FUNCTIONS:
        return f"{module.source(call.func)[:-1]}{text[len(module.source(call.func)) :]}"
    return None


def _argument(module: ModuleFacts, each: ast.expr | ast.keyword) -> str:
    if isinstance(each, ast.keyword):
        value = module.source(each.value)
        return f"{each.arg}={value}" if each.arg is not None else f"**{value}"
    return module.source(each)


def _is_torchs(module: ModuleFacts, function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute) and not isinstance(
        function.value, (ast.Name, ast.Attribute)
    ):
        return False
    return any(
        target.name.startswith(("torch.nn.functional.", _OF_INIT))
        or (target.name.startswith("torch.") and target.name.count(".") == 1)
        for target in module.resolve(function)
    )


def asks_in_place(call: ast.Call, position: int | None = None) -> bool:
    """Whether a call says ``inplace=True``, or ``True`` at the place of that."""
    told = [k.value for k in call.keywords if k.arg == "inplace"]
    if position is not None:
        told += call.args[position : position + 1]
    return any(isinstance(value, ast.Constant) and value.value is True for value in told)


def _drops_nothing(call: ast.Call, position: int) -> bool:
    """Whether a dropout, whose probability has this position, gives back what it is given."""
    if not last_name(call.func).lower().endswith(_DROPOUTS):
        return False
    given = call.args[position : position + 1]
    given += [k.value for k in call.keywords if k.arg == "p"]
    off = [k.value for k in call.keywords if k.arg == "training" and position]
    return any(isinstance(p, ast.Constant) and p.value == 0 for p in given) or any(
        isinstance(t, ast.Constant) and t.value is False for t in off
    )


@once
def _attributes(module: ModuleFacts) -> frozenset[tuple[ast.ClassDef, str]]:
    """The attributes of classes that hold a module which overwrites its input."""
    if next(_given_true(module.text, _MADE), None) is None:
        return frozenset()
    return frozenset(
        (cls, name)
        for cls in module.classes
        for name, bindings in module.names.attributes(cls).items()
        if name not in module.rebound
        and all(b.value is not None and writes_in_place(module, b.value) for b in bindings)
    )


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """What is evaluated once where a node is: nothing in a lambda or in a comprehension."""
    apart = {
        inner
        for each in walk(node)
        if isinstance(each, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
        for inner in walk(each)
        if inner is not each
    }
    return (each for each in walk(node) if each not in apart)
