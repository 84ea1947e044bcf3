"""TRN501: modules and parameters in Python lists and dicts, which ``nn.Module`` does not see."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..facts import ModuleFacts
from ..facts.comments import with_comments
from ..facts.guards import gradient_unwanted, is_forward
from ..facts.layers import Made, after_init, elements, is_module_class, made_by
from ..facts.memo import once
from ..facts.names import is_none
from ..facts.walk import walk
from ..facts.words import declare, places
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN501",
        name="unregistered-weights",
        summary="Modules or parameters are kept in a Python list or dict.",
        why=(
            "nn.Module registers what is assigned to its attributes, and looks into no list, tuple "
            "or dict. The layers run, and even get gradients, but `parameters()` does not have "
            "their weights: no optimizer trains them, no checkpoint holds them, `.to()` does not "
            "move them. nn.ModuleList and nn.ModuleDict work the same and are registered."
        ),
        before="""\
from torch import nn


class Net(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.layers = [nn.Linear(d, d) for _ in range(n)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
        after="""\
from torch import nn


class Net(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(n)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
    ),
)

# -- the bytes ------------------------------------------------------------------------------------

_MADE = rb"(?:\w+\.)*[A-Z]\w*\("
_ASSIGNED = re.compile(
    rb"= (?:"
    rb"\[(?:[\s\[({]|#[^\n]*\n)*" + _MADE + rb"|"
    rb"\(" + _MADE + rb"[^\n]*\), ?" + _MADE + rb"|"
    rb"\{[^{}:\n]*\n?[^{}:\n]*:[\s\[(]*" + _MADE + rb"|"
    rb"(?:list|tuple)\([\s\[(]*(?:map\(lambda[^:\n]*: ?)?" + _MADE + rb"|"
    rb"(?:\w+\.)?(?:d|OrderedD)ict\([^\n]*\n?[^\n]*?" + _MADE + rb"|"
    rb"(?<=\] = )[\[({]?" + _MADE + rb")"
)
"""``= [Layer(``, ``= (Layer(...), Layer(``, ``= {"a": Layer(``, the same made by ``list(``,
``tuple(`` and ``dict(``, and what follows ``x[i] = ``."""
*_ASSIGNS, _APPENDS = declare(
    *(b"= [", b"= (", b"= {", b"= list(", b"= tuple(", b"= dict(", b"= OrderedDict("),
    *(b"= collections.OrderedDict(", b"] = ", b".append("),
)
_APPENDED = re.compile(rb"\.append\((?:[\s\[({]*" + _MADE + rb"|(\w+)\))")
_IN_ATTRIBUTE = re.compile(rb"\s*self\.\w+(?:\s*:[^=]*)?\s*\+?$")
_ADDED_TO = re.compile(rb"((?:self\.)?\w+)(?:\[.*)?$")
_EMPTY = (b"[]", b"{}", b"list()", b"dict()", b"OrderedDict()")


def _may_hide_modules(data: bytes) -> bool:
    """Whether a file puts what could be fresh modules into a list or dict of an object."""
    if b"nn" not in data or b"Module" not in data:
        return False
    held: dict[bytes, bool] = {}

    def is_held(line: bytes) -> bool:
        holder = _ADDED_TO.search(line)
        if holder is None:
            return False
        name = holder[1]
        if name not in held:
            held[name] = _is_held(data, name)
        return held[name]

    for at in (place + word.index(b"=") for word in _ASSIGNS for place in places(data, word)):
        if _ASSIGNED.match(data, at) and not _in_plain_class(data, at):
            line = _line_before(data, at)
            if _IN_ATTRIBUTE.match(line) or (line.endswith(b"] ") and is_held(line)):
                return True
    for at in places(data, _APPENDS):
        match = _APPENDED.match(data, at)
        if match and is_held(_line_before(data, at)):
            if match[1] is None or _is_made(data, match[1]):
                return True
    return False


def _in_plain_class(data: bytes, at: int) -> bool:
    """Whether a place is in a class without bases, which is no module."""
    begin = data.rfind(b"\nclass ", 0, at)
    nested = data.find(b" class ", begin, at) >= 0
    return begin >= 0 and not nested and _WITHOUT_BASES.match(data, begin) is not None


_WITHOUT_BASES = re.compile(rb"\nclass \w+(?:\(\))?:")


def _line_before(data: bytes, place: int) -> bytes:
    return data[data.rfind(b"\n", 0, place) + 1 : place]


def _is_made(data: bytes, name: bytes) -> bool:
    return re.search(rb" %s = %s" % (re.escape(name), _MADE), data) is not None


def _is_held(data: bytes, name: bytes) -> bool:
    """Whether a name begins as an empty list or dict, and is an attribute or becomes one."""
    if not name.startswith(b"self.") and b" = %s\n" % name not in data:
        return False
    if any(b"%s = %s" % (name, empty) in data for empty in _EMPTY):
        return True
    return b"collections.OrderedDict()" in data or b"%s: " % name in data


NEEDLES: tuple[Needle, ...] = (Look((*_ASSIGNS, _APPENDS), _may_hide_modules),)

# -- findings -------------------------------------------------------------------------------------

_MANAGES_ITSELF = re.compile(
    r"add_module|register_module|setattr|__dict__|\b_modules\b|register_parameter|"
    r"def (named_)?(parameters|modules|children)\b|def (state_dict|_apply)\b"
)
_ON_PURPOSE = re.compile(
    r"regist|\bhid|state.?dict|optimi[sz]er|sub.?module|on purpose|not (be )?train|frozen|freez|"
    r"ModuleList|parameters",
    re.IGNORECASE,
)
_MANAGED = frozenset(
    "parameters named_parameters state_dict load_state_dict modules named_modules children "
    "requires_grad_ eval to cuda".split()
)


@dataclass
class _Held:
    """A list or dict that an attribute holds, and what goes into it."""

    statement: ast.Assign | ast.AnnAssign
    display: ast.expr
    """Where it is made: ``[...]``, ``{}``, ``list()``; of a local list, its name."""
    kind: Literal["list", "dict"]
    elements: list[ast.expr] = field(default_factory=list)
    keys: list[ast.expr] = field(default_factory=list)
    more: bool = False
    """Whether anything is added later, or in turns of a loop."""


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for cls in module.classes:
        if not is_module_class(module, cls):
            continue
        findings: list[Finding] = []
        for name, bindings in module.names.attributes(cls).items():
            if name in module.rebound:
                continue
            values = [b.value for b in bindings if not is_none(b.value)]
            made = [(b.node, b.value) for b in bindings if b.value is not None]
            if len(made) != len(bindings) or not all(v is not None for v in values):
                continue
            if any(_kind(module, value) is None for _, value in made if not is_none(value)):
                continue
            for node, value in made:
                if is_none(value) or not isinstance(node, (ast.Assign, ast.AnnAssign)):
                    continue
                finding = _judge(module, cls, name, node, value)
                if finding is not None:
                    findings.append(finding)
        if findings and not _MANAGES_ITSELF.search(module.source(cls)):
            yield from findings


def _judge(
    module: ModuleFacts,
    cls: ast.ClassDef,
    name: str,
    statement: ast.Assign | ast.AnnAssign,
    value: ast.expr,
) -> Finding | None:
    function = module.function(statement)
    if function is None or is_forward(function):
        return None
    held = _held(module, cls, name, statement, value)
    if held is None or not held.elements or _is_commented(module, statement):
        return None
    kinds = [_fresh(module, element) for element in held.elements]
    if not {"weights", "parameter"} & set(kinds):
        return None
    if len(held.elements) == 1 and not held.more:
        return None  # [module] is how a module is hidden
    uses = _uses(module, cls, name)
    parameters = "parameter" in kinds and "weights" not in kinds
    if _is_managed(module, name):
        return None
    if any(_gives_away(module, u) and not (parameters and _is_read(module, u)) for u in uses):
        return None
    if not any(_runs(module, use, function, parameters) for use in uses):
        return None
    return module.finding(
        "TRN501", _message(held, name, parameters), statement, _fixes(module, held, kinds, uses)
    )


def _message(held: _Held, name: str, parameters: bool) -> str:
    what = "its parameters" if parameters else "the weights of its modules"
    tuple_call = isinstance(held.display, ast.Call) and ast.unparse(held.display.func) == "tuple"
    kind = "tuple" if isinstance(held.display, ast.Tuple) or tuple_call else held.kind
    return (
        f"`self.{name}` is a {kind}, which nn.Module does not look into: {what} are not among "
        "`parameters()`, so no optimizer trains them and no checkpoint holds them."
    )


def _is_commented(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a comment at a statement, or right above it, says that this is meant."""
    assert statement.end_lineno is not None
    first = with_comments(module, statement.lineno)
    lines = [module.line_text(line) for line in range(first, statement.end_lineno + 1)]
    return any("#" in line and _ON_PURPOSE.search(line[line.index("#") :]) for line in lines)


# -- what is held ---------------------------------------------------------------------------------


_MAKERS: dict[str, Literal["list", "dict"]] = {
    "list": "list",
    "tuple": "list",
    "dict": "dict",
    "OrderedDict": "dict",
}


@dataclass(frozen=True)
class _Parts:
    """What a call of ``list``, ``tuple`` or ``dict`` puts into what it makes."""

    values: list[ast.expr]
    keys: list[ast.expr]
    more: bool = False

    @property
    def elements(self) -> list[ast.expr]:
        return [element for value in self.values for element in elements(value)]


def _parts(call: ast.Call) -> _Parts | None:
    """``list(Layer() for _ in range(n))``, ``dict(a=Layer())``; None where that does not show."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if _MAKERS.get(name) == "dict":
        return _pairs(call)
    if len(call.args) != 1 or call.keywords or name not in _MAKERS:
        return None
    (argument,) = call.args
    if isinstance(argument, (ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp)):
        looped = isinstance(argument, (ast.ListComp, ast.GeneratorExp))
        return _Parts([argument], [], looped)
    if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name):
        function = argument.args[0] if argument.args else None
        if argument.func.id == "map" and isinstance(function, ast.Lambda):
            return _Parts([function.body], [], True)
    return None


def _pairs(call: ast.Call) -> _Parts | None:
    """The keys and values of ``dict(a=x)``, ``dict([("a", x)])``, ``dict((k, x) for k in ks)``."""
    found = _Parts([], [], True)
    for keyword in call.keywords:
        if keyword.arg is None:
            return None
        found.keys.append(ast.Constant(keyword.arg))
        found.values.append(keyword.value)
    for argument in call.args:
        if isinstance(argument, (ast.ListComp, ast.GeneratorExp)):
            pairs = [argument.elt]
        elif isinstance(argument, (ast.List, ast.Tuple)):
            pairs = argument.elts
        else:
            return None
        for pair in pairs:
            if not isinstance(pair, (ast.Tuple, ast.List)) or len(pair.elts) != 2:
                return None
            found.keys.append(pair.elts[0])
            found.values.append(pair.elts[1])
    return found


def _kind(module: ModuleFacts, value: ast.expr | None) -> Literal["list", "dict"] | None:
    """Whether an expression is a plain list or dict, or the name of a local one."""
    if isinstance(value, (ast.List, ast.ListComp)):
        return "list"
    if isinstance(value, ast.Tuple) and value.elts:
        bare = module.start(value) == module.start(value.elts[0])
        return None if bare else "list"
    if isinstance(value, (ast.Dict, ast.DictComp)):
        return "dict"
    if isinstance(value, ast.BinOp):
        sides = (value.left, value.right) if isinstance(value.op, ast.Add) else (value.left,)
        known = isinstance(value.op, (ast.Add, ast.Mult))
        return "list" if known and all(_kind(module, side) == "list" for side in sides) else None
    if isinstance(value, ast.Call):
        maker = _MAKERS.get(module.source(value.func).rpartition(".")[2])
        empty = not value.args and not value.keywords
        return maker if empty or _parts(value) is not None else None
    if isinstance(value, ast.Name):
        made = _made_locally(module, value)
        return None if made is None or isinstance(made, ast.Name) else _kind(module, made)
    return None


def _made_locally(module: ModuleFacts, name: ast.Name) -> ast.expr | None:
    """The one value that a local name was given."""
    function = module.function(name)
    if function is None:
        return None
    statement = module.statement(name)
    definition = module.flow(function).only_definition(name.id, statement)
    if definition is None or definition.statement is None or definition.index is not None:
        return None
    return definition.value


def _held(
    module: ModuleFacts,
    cls: ast.ClassDef,
    name: str,
    statement: ast.Assign | ast.AnnAssign,
    value: ast.expr,
) -> _Held | None:
    kind = _kind(module, value)
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if kind is None or len(targets) > 1 or isinstance(targets[0], (ast.Tuple, ast.List)):
        return None
    held = _Held(statement, value, kind)
    if isinstance(value, ast.Name):
        function = module.function(value)
        made = _made_locally(module, value)
        assert function is not None and made is not None
        _add(held, made)
        for node in walk(function):
            if isinstance(node, ast.Name) and node.id == value.id and node is not value:
                if isinstance(node.ctx, ast.Load) and not _adds(module, held, node):
                    return None  # handed to nn.Sequential, say
                if node.lineno > value.lineno:
                    return None
    else:
        _add(held, value)
    for use in _uses(module, cls, name):
        _adds(module, held, use)
    return held


def _add(held: _Held, display: ast.expr) -> None:
    """What a display or comprehension holds; an empty one holds nothing."""
    if isinstance(display, ast.BinOp):
        held.more |= isinstance(display.op, ast.Mult)
        _add(held, display.left)
        if isinstance(display.op, ast.Add):
            _add(held, display.right)
    elif isinstance(display, (ast.Dict, ast.DictComp)):
        held.keys += (
            [display.key]
            if isinstance(display, ast.DictComp)
            else [key for key in display.keys if key is not None]
        )
        held.elements += elements(display)
        held.more = True
    elif isinstance(display, ast.Call):
        parts = _parts(display)
        if parts is not None:
            held.elements += parts.elements
            held.keys += parts.keys
            held.more |= parts.more
    else:
        held.elements += elements(display)
        held.more |= isinstance(display, ast.ListComp)


def _adds(module: ModuleFacts, held: _Held, use: ast.expr) -> bool:
    """Whether a use of a list or dict adds to it (or only asks for its length)."""
    parent = module.parent(use)
    if isinstance(parent, ast.Attribute):
        call = module.parent(parent)
        if isinstance(call, ast.Call) and call.func is parent and call.args:
            if parent.attr in ("append", "insert"):
                held.elements += elements(call.args[-1])
                held.more = True
                return True
            if parent.attr == "extend":
                _add(held, call.args[0])
                held.more = True
                return True
    elif isinstance(parent, ast.AugAssign) and parent.target is use:
        _add(held, parent.value)
        held.more = True
        return True
    elif isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        statement = module.parent(parent)
        if held.kind == "dict" and isinstance(statement, ast.Assign):
            held.keys.append(parent.slice)
            held.elements += elements(statement.value)
            held.more = True
            return True
    elif isinstance(parent, ast.Call) and module.source(parent.func) == "len":
        return True
    return False


def _fresh(module: ModuleFacts, element: ast.expr) -> Made | None:
    """What an element is, where nothing but this list has it."""
    if not isinstance(element, ast.Name):
        return made_by(module, element)
    function = module.function(element)
    value = _made_locally(module, element)
    if function is None or value is None:
        return None
    for node in walk(function):
        if isinstance(node, ast.Name) and node.id == element.id and node is not element:
            if isinstance(node.ctx, ast.Load) and not isinstance(
                module.parent(node), ast.Attribute
            ):
                return None
    return made_by(module, value)


# -- how it is used -------------------------------------------------------------------------------


def _uses(module: ModuleFacts, cls: ast.ClassDef, name: str) -> list[ast.Attribute]:
    """Every ``self.name`` in the methods of a class but those that are assigned."""
    return [
        node
        for node in walk(cls)
        if isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and (isinstance(node.ctx, ast.Load) or isinstance(module.parent(node), ast.AugAssign))
        and module.names.self_class(node.value) is cls
    ]


def _is_managed(module: ModuleFacts, name: str) -> bool:
    """Whether code of the file sees to the held modules by hand: ``m.layers[0].parameters()``."""
    for node in _managed(module):
        if _mentions(node.value, name):
            return True
        if isinstance(node.value, ast.Name) and any(
            _mentions(source, name) and node.value.id in _stored(target)
            for target, source in _loops_around(module, node)
        ):
            return True
    return False


@once
def _managed(module: ModuleFacts) -> list[ast.Attribute]:
    return [n for n in walk(module.tree) if isinstance(n, ast.Attribute) and n.attr in _MANAGED]


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == name for n in walk(node))


def _stored(target: ast.AST) -> set[str]:
    return {n.id for n in walk(target) if isinstance(n, ast.Name)}


def _loops_around(module: ModuleFacts, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, iterable) of the loops and comprehensions around a node."""
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, (ast.For, ast.AsyncFor)):
            yield ancestor.target, ancestor.iter
        for generator in getattr(ancestor, "generators", ()):
            yield generator.target, generator.iter


_LOOKS = frozenset("len enumerate zip reversed iter list tuple range bool print isinstance".split())


def _gives_away(module: ModuleFacts, use: ast.Attribute) -> bool:
    """Whether something else gets the whole list: ``nn.ModuleList(self.layers)``, ``return``."""
    parent = module.parent(use)
    if isinstance(parent, ast.Starred):
        parent = module.parent(parent)
    if isinstance(parent, ast.Call) and use is not parent.func:
        return not (isinstance(parent.func, ast.Name) and parent.func.id in _LOOKS)
    return isinstance(
        parent, (ast.Return, ast.keyword, ast.Assign, ast.List, ast.Tuple, ast.Dict, ast.Lambda)
    )


_READS = re.compile(r"torch\.(nn\.functional\.)?[a-z]\w*$|math\.prod$")


def _is_read(module: ModuleFacts, use: ast.expr) -> bool:
    """Whether a list is an operand: ``sum(self.ws)``, ``torch.stack(tuple(self.ws))``."""
    parent = module.parent(use)
    if isinstance(parent, ast.Starred):
        parent = module.parent(parent)
    if not isinstance(parent, ast.Call) or parent.func is use:
        return False
    if isinstance(parent.func, ast.Name) and parent.func.id in ("list", "tuple"):
        return _is_read(module, parent)
    if isinstance(parent.func, ast.Name) and parent.func.id == "sum":
        return True
    return any(_READS.match(target.name) for target in module.resolve(parent.func))


def _runs(module: ModuleFacts, use: ast.Attribute, builder: FunctionNode, parameters: bool) -> bool:
    """Whether a use of the list runs an element of it (reads one, where it holds parameters)."""
    function = module.function(use)
    if function is None or function is builder or gradient_unwanted(module, use):
        return False
    parent = module.parent(use)
    if parameters and _is_read(module, use):
        return True
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Load):
        if not isinstance(parent.slice, ast.Slice):
            return parameters or _is_run(module, function, parent)
    for loop in module.ancestors(use):
        if loop is function:
            break
        for target, source in _loops(loop):
            if any(node is use for node in walk(source)):
                names = _stored(target)
                return any(
                    isinstance(node, ast.Name)
                    and node.id in names
                    and isinstance(node.ctx, ast.Load)
                    and (parameters or _is_called(module, node))
                    for node in walk(loop)
                )
    return False


def _loops(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, (ast.For, ast.AsyncFor)):
        yield node.target, node.iter
    for generator in getattr(node, "generators", ()):
        yield generator.target, generator.iter


def _is_called(module: ModuleFacts, node: ast.expr) -> bool:
    """``layer(x)``, ``layer.forward(x)``, ``checkpoint(layer, x)``, ``block[0](x)``."""
    parent = module.parent(node)
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return _is_called(module, parent)
    if isinstance(parent, ast.Attribute):
        call = module.parent(parent)
        return parent.attr == "forward" and isinstance(call, ast.Call)
    if not isinstance(parent, ast.Call):
        return False
    if parent.func is node:
        return True
    return parent.args[:1] == [node] and "checkpoint" in module.source(parent.func)


def _is_run(module: ModuleFacts, function: FunctionNode, element: ast.Subscript) -> bool:
    """Whether ``self.layers[i]`` is called, at once or by the name it is given."""
    if _is_called(module, element):
        return True
    statement = module.parent(element)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    return any(
        isinstance(node, ast.Name) and node.id == name and _is_called(module, node)
        for node in walk(function)
    )


# -- fixes ----------------------------------------------------------------------------------------

_LIST_METHODS = frozenset({"append", "extend", "insert"})
_DICT_METHODS = frozenset({"items", "keys", "values", "update", "pop", "clear"})


def _fixes(
    module: ModuleFacts,
    held: _Held,
    kinds: Sequence[Made | None],
    uses: Iterable[ast.Attribute],
) -> dict[str, Fix]:
    if None in kinds or len({kind == "parameter" for kind in kinds}) > 1:
        return {}
    if not all(_is_supported(module, held, use) for use in uses):
        return {}
    if not after_init(module, held.statement):
        return {}
    look_at = ""
    if held.kind == "dict":
        verdict = _key_trouble(module, held.keys)
        if verdict is None:
            return {}
        look_at = verdict
    container = "Parameter" if kinds[0] == "parameter" else "Module"
    prefix, imports = _torch_nn(module)
    if prefix is None:
        return {}
    wrapping = _Wrapping(module, f"{prefix}.{container}")
    edits = [*imports, *wrapping.edits(held.display, held.kind), *_annotation(module, held, prefix)]
    for use in uses:
        edits += _wrap_added(module, wrapping, use)
    title = f"Register it: {prefix}.{container}{held.kind.capitalize()}"
    fix = Fix(title, tuple(edits), Safety.UNSAFE if look_at else Safety.SAFE, look_at)
    return dict.fromkeys(STRATEGIES, fix)


def _is_supported(module: ModuleFacts, held: _Held, use: ast.Attribute) -> bool:
    """Whether a ModuleList or ModuleDict can be used like this too."""
    parent = module.parent(use)
    if isinstance(parent, ast.Attribute):
        return parent.attr in (_LIST_METHODS if held.kind == "list" else _DICT_METHODS)
    if isinstance(parent, ast.Call):  # of torch's functions, most take a list or tuple only
        if any(_READS.match(target.name) for target in module.resolve(parent.func)):
            return False
        return module.source(parent.func) != "isinstance"
    if isinstance(parent, ast.Compare):
        return held.kind == "dict" and isinstance(parent.ops[0], (ast.In, ast.NotIn))
    if isinstance(parent, ast.Subscript):
        if held.kind == "list" and isinstance(parent.ctx, ast.Store):
            return not isinstance(parent.slice, ast.Slice)
        return isinstance(parent.ctx, ast.Load) or held.kind == "dict"
    return isinstance(
        parent,
        (ast.For, ast.AsyncFor, ast.comprehension, ast.Starred, ast.AugAssign, ast.If, ast.Assert),
    )


_RESERVED = frozenset(
    "T_destination add_module apply bfloat16 buffers call_super_init children clear compile cpu "
    "cuda double dump_patches eval extra_repr float forward get_buffer get_extra_state "
    "get_parameter get_submodule half ipu items keys load_state_dict modules mtia named_buffers "
    "named_children named_modules named_parameters parameters pop register_backward_hook "
    "register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook "
    "register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_load_state_dict_pre_hook register_module register_parameter "
    "register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state "
    "set_submodule share_memory state_dict to to_empty train training type update values xpu "
    "zero_grad "
    "copy fromkeys get popitem setdefault".split()
)
"""What nn.ModuleDict and nn.ParameterDict have as attributes: no key can be called so."""


def _key_trouble(module: ModuleFacts, keys: Iterable[ast.expr]) -> str | None:
    """What to look at in the keys of a dict; None where a ModuleDict cannot have them."""
    look_at = ""
    for key in keys:
        literals = _literals(module, key)
        if literals is not None:
            if not all(_is_allowed(literal) for literal in literals):
                return None
        elif isinstance(key, ast.Name) and _counts(module, key):
            return None
        elif not isinstance(key, ast.JoinedStr) and not _is_str(key):
            look_at = f"a ModuleDict takes strings without dots as keys: is `{ast.unparse(key)}`?"
    return look_at


def _is_allowed(key: ast.expr) -> bool:
    """Whether a literal can be a key: a string that is no attribute of the container."""
    value = key.value if isinstance(key, ast.Constant) else None
    return (
        isinstance(value, str)
        and value != ""
        and "." not in value
        and value not in _RESERVED
        and not value.startswith("_")
    )


def _literals(module: ModuleFacts, key: ast.expr) -> list[ast.expr] | None:
    """What a key can be where it is written out: ``"a"``, or ``k`` of ``for k in ("a", "b")``."""
    if isinstance(key, ast.Constant):
        return [key]
    if not isinstance(key, ast.Name):
        return None
    for target, source in _loops_around(module, key):
        if key.id in _stored(target):
            return _taken_from(module, target, source, key.id)
    definition = _made_locally(module, key)
    return [definition] if isinstance(definition, ast.Constant) else None


def _taken_from(
    module: ModuleFacts, target: ast.expr, source: ast.expr, name: str
) -> list[ast.expr] | None:
    """The literals that a loop gives a name, where they are written out."""
    if isinstance(source, ast.Name):
        names = module.names.bindings(module.tree).get(source.id, ())
        made = _made_locally(module, source)
        values = [made] if made is not None else [b.value for b in names]
        if len(values) != 1 or values[0] is None:
            return None
        source = values[0]
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Name):
        if source.func.id in ("sorted", "reversed", "list", "tuple", "set") and source.args:
            return _taken_from(module, target, source.args[0], name)
        if source.func.id == "enumerate" and source.args and isinstance(target, ast.Tuple):
            return _taken_from(module, target.elts[-1], source.args[0], name)
        if source.func.id == "zip" and isinstance(target, ast.Tuple):
            for part, given in zip(target.elts, source.args, strict=False):
                if name in _stored(part):
                    return _taken_from(module, part, given, name)
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
        if source.func.attr == "items" and isinstance(target, ast.Tuple):
            return _taken_from(module, target.elts[0], source.func.value, name)
        if source.func.attr == "keys":
            return _taken_from(module, target, source.func.value, name)
    elements: list[ast.expr | None]
    if isinstance(source, ast.Dict):
        elements = list(source.keys)
    elif isinstance(source, (ast.Tuple, ast.List, ast.Set)):
        elements = list(source.elts)
    else:
        return None
    if isinstance(target, ast.Tuple):
        at = next((i for i, e in enumerate(target.elts) if name in _stored(e)), 0)
        elements = [
            e.elts[at] if isinstance(e, (ast.Tuple, ast.List)) and at < len(e.elts) else None
            for e in elements
        ]
    found = [e for e in elements if e is not None]
    return found if len(found) == len(elements) and found and _are_literals(found) else None


def _are_literals(nodes: Iterable[ast.expr]) -> bool:
    return all(isinstance(node, ast.Constant) for node in nodes)


def _is_str(key: ast.expr) -> bool:
    return isinstance(key, ast.Call) and isinstance(key.func, ast.Name) and key.func.id == "str"


def _counts(module: ModuleFacts, key: ast.Name) -> bool:
    """Whether a key is the number of a turn: ``for i in range(n)``."""
    for target, source in _loops_around(module, key):
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Name):
            if source.func.id == "range" and key.id in _stored(target):
                return True
            if source.func.id == "enumerate" and isinstance(target, ast.Tuple):
                if key.id in _stored(target.elts[0]):
                    return True
    return False


def _torch_nn(module: ModuleFacts) -> tuple[str | None, list[Edit]]:
    """How the file names ``torch.nn``, and the import where it does not yet."""
    from ..rewrite import layout

    name = layout.bound_at_top(module, "torch.nn")
    if name is not None:
        return name, []
    torch = layout.bound_at_top(module, "torch")
    if torch is not None:
        return f"{torch}.nn", []
    if layout.is_taken(module, "nn"):
        return None, []
    return "nn", [layout.import_edit(module, "from torch import nn")]


def _annotation(module: ModuleFacts, held: _Held, prefix: str) -> list[Edit]:
    """``self.layers: list[nn.Module] = []`` is annotated as what it becomes."""
    statement = held.statement
    if not isinstance(statement, ast.AnnAssign):
        return []
    return [Edit(module.end(statement.target), module.end(statement.annotation), "")]


def _wrap_added(module: ModuleFacts, wrapping: _Wrapping, use: ast.Attribute) -> list[Edit]:
    """Lists that are added to the list become registered too: ``self.blocks.append([a, b])``."""
    parent = module.parent(use)
    call = module.parent(parent) if isinstance(parent, ast.Attribute) else None
    if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and call.func is parent:
        if parent.attr in ("append", "insert"):
            return wrapping.nested(call.args[-1])
        if parent.attr == "extend":
            return wrapping.inside(call.args[0])
    if isinstance(parent, ast.AugAssign):
        return wrapping.inside(parent.value)
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        statement = module.parent(parent)
        if isinstance(statement, ast.Assign):
            return wrapping.nested(statement.value)
    return []


@dataclass
class _Wrapping:
    """Puts containers around displays."""

    module: ModuleFacts
    container: str
    """``nn.Module`` or ``nn.Parameter``, before ``List`` or ``Dict``."""

    def edits(self, node: ast.expr, kind: str) -> list[Edit]:
        start, end = self.module.start(node), self.module.end(node)
        name = f"{self.container}{kind.capitalize()}"
        if isinstance(node, ast.Call) and (node.args or node.keywords):
            inside = self.inside(node)
            if kind == "list":
                return [Edit(start, self.module.end(node.func), name), *inside]
            return [Edit(start, start, f"{name}("), *inside, Edit(end, end, ")")]
        if isinstance(node, ast.Call) or not (elements(node) or isinstance(node, ast.Name)):
            return [Edit(start, end, f"{name}()")]
        return [Edit(start, start, f"{name}("), *self.inside(node), Edit(end, end, ")")]

    def inside(self, node: ast.expr) -> list[Edit]:
        """Wrap the lists that a display holds."""
        if isinstance(node, (ast.List, ast.Tuple)):
            return [edit for element in node.elts for edit in self.nested(element)]
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self.nested(node.elt)
        if isinstance(node, ast.Dict):
            return [edit for value in node.values for edit in self.nested(value)]
        if isinstance(node, ast.DictComp):
            return self.nested(node.value)
        if isinstance(node, ast.BinOp):
            return [*self.inside(node.left), *self.inside(node.right)]
        if isinstance(node, ast.Call):
            parts = _parts(node)
            if parts is not None and parts.keys:
                return [edit for value in parts.values for edit in self.nested(value)]
            return self.inside(node.args[0]) if node.args else []
        return []

    def nested(self, node: ast.expr) -> list[Edit]:
        if isinstance(node, (ast.List, ast.Tuple, ast.ListComp)):
            return self.edits(node, "list")
        if isinstance(node, (ast.Dict, ast.DictComp)):
            return self.edits(node, "dict")
        return []
