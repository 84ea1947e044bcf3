"""Whether a class has something to train, as far as its source shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .frozen import is_false, is_frozen
from .layers import bases_of
from .memo import once
from .names import attributes_set, passed
from .views import is_view_method
from .walk import statements, walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

NOT_TRAINED = re.compile(
    r"teacher|ema|target|momentum|metric|score|inception|lpips|reward|safety|frozen|augment|"
    r"preproc|(rotary|rope)_?(\dd)?_?(pos\w*)?_?(emb\w*|enc\w*|table|cache|freqs?)?$",
    re.IGNORECASE,
)
"""Names of classes that have nothing to train, whatever they hold, unless a step trains them."""
_WITH_WEIGHTS = re.compile(
    r"Linear|Embedding|Conv|Norm|Module(List|Dict)|Sequential|Attention|LSTM|GRU|RNN|Transformer|"
    r"Parameter"
)
_TRANSFORMS = (
    "kornia.",
    "torchvision.transforms",
    "torchaudio.transforms",
    "torch_audiomentations.",
)
_CLASS_NAME = re.compile(r"[A-Z]\w*[a-z]\w*$")
_NO_MODULE = re.compile(
    r"Config|Token|Process|Cache|Dict|Lock|Queue|Manager|Buffer|Dataset|Loader|Logger|Scheduler|"
    r"Args|Params$|Settings|Type|Namespace|Event|Thread|Client|Timer|Counter|Path|Generator|Mode$"
)
_NN_WEIGHTS = re.compile(
    r"torch\.nn\.((modules|parameter)\.\w+\.)?(Linear|Bilinear|Embedding|EmbeddingBag|"
    r"(Lazy)?Conv(Transpose)?\dd|\w*Norm(\dd)?|LSTM|GRU|RNN|LSTMCell|GRUCell|RNNCell|PReLU|"
    r"MultiheadAttention|Transformer\w*)$"
)
_NN_CONTAINER = re.compile(r"torch\.nn\.(Sequential|ModuleList|ModuleDict)$")
_NOT_FROM_SCRATCH = re.compile(
    r"requires_grad|pretrained|load_state_dict|torch\.load|freez|frozen|\.eval\(\)|deepcopy|"
    r"mutat|fitness",
    re.I,
)
_INDICES = re.compile(r"(^|_)(indices|idx|ids)$")
DISCRETE = frozenset(
    "indices argmax argmin argsort multinomial long int int32 int64 bool topk_indices".split()
)


@once
def holds_weights(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a class has parameters or modules to train, as far as it shows.

    Tables (a rotary embedding's ``inv_freq``), teachers, metrics and frozen networks have none.
    """
    return not _is_left_alone(module, cls) and could_learn(module, cls)


def _is_left_alone(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether the name of a class says that it is not trained, and no step contradicts."""
    from .trained_alone import is_trained_alone

    return bool(NOT_TRAINED.search(cls.name)) and not is_trained_alone(module, cls)


@once
def could_learn(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """The same, whatever the class is called."""
    text = module.source(cls)
    if "requires_grad" in text and _FROZEN.search(text):
        return bool(trained_submodules(module, cls)) and _says_what_it_freezes(module, cls)
    for bindings in module.names.attributes(cls).values():
        for binding in bindings:
            if isinstance(binding.value, ast.Call) and _makes_module(module, binding.value):
                return True
    return any(holds_weights(*base) for base in bases_of(module, cls) if base[1] is not cls)


def _says_what_it_freezes(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether all that a class freezes are attributes of its own, so that the others learn.

    ``if "lora" not in name`` leaves some of them, too.
    """
    for node in module.frozen_places:
        function = module.function(node)
        if module.method_class(function) is not cls:
            continue
        if isinstance(module.parent(module.statement(node)), ast.If):
            continue
        root = node
        while isinstance(root, (ast.Call, ast.Subscript)) or (
            isinstance(root, ast.Attribute) and not isinstance(root.value, ast.Name)
        ):
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Attribute) and isinstance(root.value, ast.Name):
            if module.names.self_class(root.value) is cls and root.attr not in _OF_ALL:
                continue
        return False
    return True


_OF_ALL = ("parameters", "named_parameters", "modules", "children", "requires_grad_")


def makes_weights(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call makes parameters of torch's: ``nn.Linear(2, 2)``, ``nn.Parameter(w)``."""
    return any(
        target.name.startswith("torch.nn.") and _WITH_WEIGHTS.search(target.name[9:])
        for target in module.resolve(call.func)
    )


@once
def submodules(module: ModuleFacts, cls: ast.ClassDef) -> dict[str, list[ast.expr]]:
    """The attributes of a class that hold modules or parameters, with what makes them."""
    found: dict[str, list[ast.expr]] = {}
    for statement in _assignments(module).get(cls, ()):
        for target in statement.targets:
            for attribute, value in attributes_set(target, statement.value):
                if any(isinstance(n, ast.Call) and _makes_module(module, n) for n in _made(value)):
                    found.setdefault(attribute.attr, []).append(value)
    return found


@once
def _assignments(module: ModuleFacts) -> dict[ast.ClassDef, list[ast.Assign]]:
    """The assignments in the methods of each class."""
    found: dict[ast.ClassDef, list[ast.Assign]] = {}
    for statement in module.statements:
        if isinstance(statement, ast.Assign):
            cls = module.method_class(module.function(statement))
            if cls is not None:
                found.setdefault(cls, []).append(statement)
    return found


def _made(value: ast.expr) -> Iterator[ast.expr]:
    """A constructor, below calls on what it makes: ``Linear(8, 8).to(device)``."""
    yield value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
        yield value


_LEAVES = (".eval()", "freeze", "set_requires_grad", "disable")
_LEFT_ALONE = re.compile(
    r"self\.(\w+)\s*=[^=\n][^\n]*\.eval\(\)"
    r"|(?:freeze\w*|set_requires_grad|disabled?_\w+)\(\s*self\.(\w+)"
)
_FROZEN = re.compile(r"requires_grad_?\(?\s*(=\s*)?False")
_ALL_FROZEN = re.compile(
    r"self\.requires_grad_\(\s*(?:requires_grad=)?False|freeze\w*\(\s*self\s*[,)]"
    r"|\bfor [^\n:]+ in self\.(?:named_)?parameters\(\)[^\n]*:\s*"
    r"[^\n]*requires_grad(?:_\(|\s*=)\s*False"
)


def is_reference(name: str) -> bool:
    """Whether a name is that of something which is not trained: a teacher, a table, a metric."""
    return bool(NOT_TRAINED.search(name))


@once
def trained_submodules(module: ModuleFacts, cls: ast.ClassDef) -> frozenset[str]:
    """The attributes of a class that hold something to train, as far as it shows."""
    if _is_left_alone(module, cls):
        return frozenset()
    text = module.source(cls)
    if ("requires_grad" in text or "freeze" in text) and _ALL_FROZEN.search(text):
        return frozenset()
    alone = _LEFT_ALONE.finditer(text) if any(word in text for word in _LEAVES) else ()
    left_alone = {name for match in alone for name in match.groups()}
    return frozenset(
        name
        for name, values in submodules(module, cls).items()
        if name not in left_alone
        and not is_reference(name)
        and not any(_is_loaded(module, value) or _is_constant(value) for value in values)
        and not is_frozen(module, cls, name)
    )


def _is_constant(value: ast.expr) -> bool:
    """``nn.Parameter(table, requires_grad=False)``."""
    return isinstance(value, ast.Call) and any(
        k.arg == "requires_grad" and is_false(k.value) for k in value.keywords
    )


def _is_loaded(module: ModuleFacts, value: ast.expr) -> bool:
    """Whether a module comes with its weights: such a one is often left as it is."""
    return bool(_LOADS.search(module.source(value)))


_LOADS = re.compile(
    r"from_pretrained|pretrained\s*=\s*True|\.load\(|create_model|weights\s*=|\.eval\(\)"
)


def _makes_module(module: ModuleFacts, call: ast.Call) -> bool:
    for target in module.resolve(call.func):
        if target.name.startswith(_TRANSFORMS):
            return False
        if target.name.startswith("torch."):
            parts = [part for part in call.args if isinstance(part, ast.Call)]
            if target.name.endswith(".Sequential") and parts and len(parts) == len(call.args):
                return any(_makes_module(module, part) for part in parts)
            return bool(_WITH_WEIGHTS.search(target.name.rpartition(".")[2]))
    name = module.source(call.func).rpartition(".")[2]
    return bool(_CLASS_NAME.match(name)) and not _NO_MODULE.search(name)


@once
def is_trainable(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a class has weights of its own, made from scratch, that nothing freezes."""
    return holds_weights(module, cls) and not _NOT_FROM_SCRATCH.search(module.source(cls))


def weights_made(module: ModuleFacts, value: ast.expr) -> Iterator[ast.Call]:
    """The calls in an expression that make modules with weights; none where it is no module."""
    if not isinstance(value, ast.Call):
        return
    if isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cuda", "train"):
        yield from weights_made(module, value.func.value)
        return
    names = [t.name for t in module.resolve(value.func)]
    if any(_NN_CONTAINER.match(name) for name in names):
        for argument in passed(value):
            for inner in walk(argument):
                if isinstance(inner, ast.Call):
                    yield from weights_made(module, inner)
    elif any(_NN_WEIGHTS.match(name) for name in names):
        yield value
    else:
        cls = local_class(module, value.func)
        if cls is not None and is_trainable(module, cls):
            yield value


def local_class(module: ModuleFacts, node: ast.expr) -> ast.ClassDef | None:
    if isinstance(node, ast.Name):
        return next((c for c in module.classes if c.name == node.id), None)
    return None


def returns_numbers(function: FunctionNode) -> bool:
    """Whether everything a function returns is discrete: indices, masks, integers."""
    returns = (s for s in statements(function, nested=True) if isinstance(s, ast.Return))
    values = [statement.value for statement in returns if statement.value is not None]
    return bool(values) and all(map(_is_discrete, values))


def _is_discrete(value: ast.expr) -> bool:
    if isinstance(value, ast.Compare):
        return True
    root: ast.expr = value
    while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
        root = root.func if isinstance(root, ast.Call) else root.value
    if isinstance(root, ast.Name) and _INDICES.search(root.id):
        return True
    names = {n.attr for n in walk(value) if isinstance(n, ast.Attribute)}
    return not names.isdisjoint(DISCRETE)


def is_buffer(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an expression is a buffer of ``self``, or a view of one, which nothing trains."""
    while isinstance(node, (ast.Call, ast.Subscript)) or (
        isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Name)
    ):
        if not isinstance(node, ast.Call):
            node = node.value
        elif isinstance(node.func, ast.Attribute) and is_view_method(node.func.attr):
            node = node.func.value  # self.codes.t()
        else:
            return False
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    if f'register_buffer("{node.attr}"' not in module.usual:
        if f"register_buffer('{node.attr}'" not in module.usual:
            return False
    cls = module.names.self_class(node.value)
    return cls is not None and any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "register_buffer"
        and bool(call.args)
        and isinstance(call.args[0], ast.Constant)
        and call.args[0].value == node.attr
        for each in module.names.with_bases(cls)
        for call in walk(each)
    )


_BIAS = re.compile(r"(?!.*(mask|alibi)).*bias", re.IGNORECASE)


def may_hold_weight(module: ModuleFacts, node: ast.expr, depth: int = 4) -> bool:
    """Whether a value can depend on a parameter, as far as it shows: masks and tables do not.

    What a function is given counts by its name: ``bias``, but not ``mask``.
    """
    if depth == 0 or is_buffer(module, node):
        return False
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
        if cls is not None:
            bindings = module.names.attributes(cls).get(node.attr)
            if bindings is None:
                return _BIAS.match(node.attr) is not None
            calls = [b.value for b in bindings if isinstance(b.value, ast.Call)]
            return any(_makes_module(module, call) for call in calls)
        return _BIAS.match(node.attr) is not None
    if isinstance(node, ast.Name):
        statement = module.statement(node)
        function = module.function(statement)
        flow = module.flow(function or module.tree)
        for definition in flow.reaching(node.id, statement):
            if definition.is_parameter and _BIAS.match(node.id):
                return True
            if definition.value is not None and may_hold_weight(
                module, definition.value, depth - 1
            ):
                return True
        return False
    children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    children += [k.value for k in getattr(node, "keywords", ()) if isinstance(node, ast.Call)]
    return any(may_hold_weight(module, child, depth) for child in children)
