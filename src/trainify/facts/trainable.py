"""Whether a class has something to train, as far as its source shows."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_NOT_TRAINED = re.compile(
    r"teacher|ema|target|momentum|metric|score|inception|lpips|reward|safety|frozen|rotary|rope",
    re.IGNORECASE,
)
_WITH_WEIGHTS = re.compile(
    r"Linear|Embedding|Conv|Norm|Module(List|Dict)|Sequential|Attention|LSTM|GRU|RNN|Transformer|"
    r"Parameter"
)
_CLASS_NAME = re.compile(r"[A-Z]\w*[a-z]\w*$")
_NO_MODULE = re.compile(
    r"Config|Token|Process|Cache|Dict|Lock|Queue|Manager|Buffer|Dataset|Loader|Logger|Scheduler|"
    r"Args|Params$|Settings|Type|Namespace|Event|Thread|Client|Timer|Counter|Path|Generator|Mode$"
)
_DISCRETE = frozenset(
    "indices argmax argmin argsort multinomial long int int32 int64 bool topk_indices".split()
)


def holds_weights(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a class has parameters or modules to train, as far as it shows.

    Tables (a rotary embedding's ``inv_freq``), teachers, metrics and frozen networks have none.
    """
    if _NOT_TRAINED.search(cls.name):
        return False
    text = module.source(cls)
    if re.search(r"requires_grad_?\(?\s*(=\s*)?False", text):
        return False
    for bindings in module.names.attributes(cls).values():
        for binding in bindings:
            if isinstance(binding.value, ast.Call) and _makes_module(module, binding.value):
                return True
    return False


def makes_weights(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call makes parameters of torch's: ``nn.Linear(2, 2)``, ``nn.Parameter(w)``."""
    return any(
        target.name.startswith("torch.nn.") and _WITH_WEIGHTS.search(target.name[9:])
        for target in module.resolve(call.func)
    )


def _makes_module(module: ModuleFacts, call: ast.Call) -> bool:
    for target in module.resolve(call.func):
        if target.name.startswith("torch."):
            return bool(_WITH_WEIGHTS.search(target.name.rpartition(".")[2]))
    name = module.source(call.func).rpartition(".")[2]
    return bool(_CLASS_NAME.match(name)) and not _NO_MODULE.search(name)


def returns_numbers(function: FunctionNode) -> bool:
    """Whether everything a function returns is discrete: indices, masks, integers."""
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    return bool(returns) and all(_is_discrete(n.value) for n in returns if n.value is not None)


def _is_discrete(value: ast.expr) -> bool:
    if isinstance(value, ast.Compare):
        return True
    names = {n.attr for n in ast.walk(value) if isinstance(n, ast.Attribute)}
    return not names.isdisjoint(_DISCRETE)
