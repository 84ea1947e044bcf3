"""TRN605: an optimizer whose parameters no loss of the step reaches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.grad_mode import own_nodes
from ..facts.graph import Cut, Graph, results
from ..facts.layers import imported_function
from ..facts.learning import LOSS_CALL, backward_values, is_tensor_method
from ..facts.memo import once
from ..facts.names import Binding, last_name, passed
from ..facts.trainable import weights_made
from ..facts.walk import statements, walk
from ..findings import Finding
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN605",
        name="step-of-unreached-parameters",
        summary="An optimizer steps parameters that no loss of the step has a graph to.",
        why=(
            "Each backward() fills only the parameters that its loss was computed by. An optimizer "
            "that was given those of another model, a generator whose loss sees `fake.detach()`, "
            "an actor whose loss takes the actions of the replay buffer: nothing gets a gradient, "
            "and step() walks over the parameters, finds none, and returns as if it had worked."
        ),
        before="""\
import torch


def train(generator, critic, loader):
    generator_optimizer = torch.optim.Adam(generator.parameters())
    critic_optimizer = torch.optim.Adam(critic.parameters())
    for real in loader:
        fake = generator(torch.randn(8, 4)).detach()
        critic_loss = critic(fake).mean() - critic(real).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        loss = -critic(fake).mean()
        generator_optimizer.zero_grad()
        loss.backward()
        generator_optimizer.step()
""",
        after="",
    ),
)


def _may_concern(data: bytes) -> bool:
    return b".step(" in data and b"ptim" in data


NEEDLES: tuple[Needle, ...] = (Look((b"backward(",), _may_concern),)

_BY_HAND = re.compile(r"\.grad\b|autograd\.grad|closure|functional_call|\w_backward|backward_\w")
"""What may give parameters a gradient in another way than ``backward`` of a loss."""
_DATA = re.compile(r"loader|dataset|batch|buffer|memory|replay|\benv\b|sampler|iterator")
_NUMBER = re.compile(
    r"gamma|alpha|beta|tau|lambda|coef|discount|eps|scale|weight|size|steps?$|device|dtype|_dim$"
)
_WHOLE = re.compile(
    r"(^|_|\.)(model|net|network|agent|policy|system|learner|ac|actor_critic|gan|vae|unet|backbone|"
    r"pipe\w*|module|trainer)\d*$"
)
"""Names of what may have another model as a part."""
_TARGET = re.compile(r"target|teacher|(^|_)ema(_|$)")
_MAKES_DATA = frozenset("next iter enumerate zip len range tqdm float int list tuple sum".split())


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for function in (*module.functions, module.tree):
        yield from _unreached(module, function)


def _unreached(module: ModuleFacts, function: FunctionNode | ast.Module) -> Iterator[Finding]:
    steps = list(_steps(module, function)) if _optimizers(module) else []
    losses = [(v, module.statement(call)) for v, call in backward_values(module, function)]
    if not steps or not losses or _is_differentiated_elsewhere(module, function):
        return
    reached, cuts, sure = _reach(module, function, losses)
    if not sure or not reached:
        return  # where no model is reached, another rule says why
    for call, optimizer in steps:
        owners = _optimizers(module)[optimizer]
        if owners & reached:  # the others count where a scope has cut them off
            owners = frozenset(o for o in owners - reached if o in cuts and cuts[o].scope)
            if _is_stepped_elsewhere(module, function, optimizer):
                continue
        if not owners:
            continue
        if any(_may_hold(module, function, whole, part) for whole in reached for part in owners):
            continue
        listed = " and ".join(f"`{owner}`" for owner in sorted(owners))
        cut = next((cuts[owner] for owner in sorted(owners) if owner in cuts), None)
        why = f"`{module.source(cut.node)}` is on the way" if cut is not None else ""
        message = (
            f"`{optimizer}` steps the parameters of {listed}, but no loss here has a graph to "
            f"them{': ' + why if why else ''}. They get no gradient, and step() skips them without "
            "a word."
        )
        related = (module.related("The graph ends here.", cut.node),) if cut is not None else ()
        yield module.finding("TRN605", message, call, {}, related)


def _is_stepped_elsewhere(
    module: ModuleFacts, function: FunctionNode | ast.Module, optimizer: str
) -> bool:
    """Whether another function steps the same optimizer, by a loss of its own."""
    others = (f for f in (*module.functions, module.tree) if f is not function)
    return any(stepped == optimizer for other in others for _, stepped in _steps(module, other))


@once
def _optimizers(module: ModuleFacts) -> dict[str, frozenset[str]]:
    """The optimizers of a file, by their text, with the models whose parameters they have.

    None of those whose parameters come from somewhere else as well, or that are made twice.
    """
    found: dict[str, frozenset[str]] = {}
    for statement in module.statements:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        value = statement.value
        if not isinstance(value, ast.Call):
            continue
        if any(t.name.startswith("torch.optim.") for t in module.resolve(value.func)):
            owners = _owners(value.args[0]) if value.args else frozenset[str]()
        elif (made := _made_by_helper(module, value)) is not None:
            owners = made
        else:
            continue
        name = ast.unparse(statement.targets[0])
        found[name] = frozenset() if name in found else owners
    return found


def _made_by_helper(module: ModuleFacts, call: ast.Call) -> frozenset[str] | None:
    """The same of ``make_optimizer(model)``, a function of the project; None of any other."""
    if not _MAKES.search(last_name(call.func)):
        return None
    callee = Graph(module, module.function(call) or module.tree).callee(call)
    home = (module, callee) if callee is not None else imported_function(module, call.func)
    if home is None:
        return None
    other, function = home
    made = [value for value, _ in results(function)]
    if len(made) != 1 or not isinstance(made[0], ast.Call) or not made[0].args:
        return None
    if not any(t.name.startswith("torch.optim.") for t in other.resolve(made[0].func)):
        return None
    flow = other.flow(function)
    owners = set()
    for owner in _owners(made[0].args[0]):
        given = module.project.argument(other, function, call, owner)
        if given is None or flow.all_definitions(owner):
            return frozenset()
        owners.add(ast.unparse(given))
    return frozenset(owners)


_MAKES = re.compile(r"opt", re.IGNORECASE)


def _owners(given: ast.expr) -> frozenset[str]:
    """``{"a", "b"}`` of ``[*a.parameters(), *b.parameters()]``, and of groups of parameters."""
    if isinstance(given, ast.Call):
        function = given.func
        if isinstance(function, ast.Attribute) and function.attr == "parameters":
            owner = function.value
            plain = isinstance(owner, ast.Name) or (
                isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name)
            )
            return frozenset({ast.unparse(owner)}) if plain else frozenset()
        if last_name(function) in ("list", "chain"):
            parts = [_owners(argument) for argument in given.args]
            return frozenset().union(*parts) if all(parts) else frozenset()
    elif isinstance(given, ast.BinOp):
        left, right = _owners(given.left), _owners(given.right)
        return left | right if left and right else frozenset()
    elif isinstance(given, ast.Starred):
        return _owners(given.value)
    elif isinstance(given, (ast.List, ast.Tuple)):
        parts = [_owners(element) for element in given.elts]
        return frozenset().union(*parts) if all(parts) else frozenset()
    elif isinstance(given, ast.Dict):  # {"params": a.parameters(), "lr": 1e-4}
        for key, value in zip(given.keys, given.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "params":
                return _owners(value)
    return frozenset()


def _steps(
    module: ModuleFacts, function: FunctionNode | ast.Module
) -> Iterator[tuple[ast.Call, str]]:
    """``optimizer.step()`` and ``scaler.step(optimizer)``, with the optimizer's text."""
    for node in own_nodes(function):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "step":
            stepped = node.args[0] if node.args else node.func.value
            if ast.unparse(stepped) in _optimizers(module):
                yield node, ast.unparse(stepped)


def _is_differentiated_elsewhere(module: ModuleFacts, function: FunctionNode | ast.Module) -> bool:
    """Whether gradients may come from another function, or by hand."""
    text = module.text if isinstance(function, ast.Module) else module.source(function)
    if _BY_HAND.search(text):
        return True
    differentiating = {
        f.name for f in module.functions if f is not function and "backward" in module.source(f)
    }
    called = {last_name(n.func) for n in own_nodes(function) if isinstance(n, ast.Call)}
    return not differentiating.isdisjoint(called - {"backward"})


def _reach(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    losses: list[tuple[ast.expr, ast.stmt]],
) -> tuple[set[str], dict[str, Cut], bool]:
    """The models that losses have a graph to, those that are cut off, and whether that is all."""
    models = frozenset().union(
        *_optimizers(module).values(), _made_here(module, function), _given_here(module, function)
    )
    reached: set[str] = set()
    cuts: dict[str, Cut] = {}
    for step in Graph(module, function).back_from(losses):
        node = step.node.func if isinstance(step.node, ast.Call) else step.node
        text = ast.unparse(node)
        owner = next((m for m in models if text == m or text.startswith(f"{m}.")), None)
        given = {m for a in _given(step.node) if (m := ast.unparse(a)) in models}
        if step.cut is not None:
            if owner is not None:
                cuts.setdefault(owner, step.cut)
        elif owner is not None or given:
            reached |= given | ({owner} if owner is not None else set())
        elif isinstance(step.node, ast.Call) and not _holds_nothing(module, step.node):
            return reached, cuts, False
        elif isinstance(step.node, ast.Attribute) and not _is_plain(step.node):
            return reached, cuts, False  # self.loss, self.fake
    return reached, cuts, True


def _made_here(module: ModuleFacts, function: FunctionNode | ast.Module) -> Iterator[str]:
    """The names that a function gives to models with weights that it makes."""
    for statement in statements(function):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            if any(True for _ in weights_made(module, statement.value)):
                yield statement.targets[0].id


_PART = re.compile(
    r"(^|_)(student|generator|discriminator|actor|critic|encoder|decoder|projector|head)$"
)
"""Names of models that are a part of training, and have no other model as a part."""


def _given_here(module: ModuleFacts, function: FunctionNode | ast.Module) -> Iterator[str]:
    """The parameters of a function that are such models by their names.

    None that may be a part of what an optimizer has: ``head``, where it has ``model``.
    """
    owners = frozenset().union(*_optimizers(module).values())
    if any(_WHOLE.search(owner) for owner in owners):
        return
    for name in module.flow(function).parameters:
        if _PART.search(name) and not any(name in owner for owner in owners - {name}):
            yield name


def _given(node: ast.expr) -> Iterator[ast.expr]:
    """What a call is given itself: ``checkpoint(generator, z)`` runs one."""
    if not isinstance(node, ast.Call):
        return
    for argument in passed(node):
        if isinstance(argument, (ast.Name, ast.Attribute)):
            yield argument


def _is_plain(node: ast.Attribute) -> bool:
    """Whether an attribute of ``self`` is a number or data: ``self.gamma``, ``self.loader``."""
    return bool(_NUMBER.search(node.attr) or _DATA.search(node.attr))


def _may_hold(
    module: ModuleFacts, function: FunctionNode | ast.Module, whole: str, part: str
) -> bool:
    """Whether one model may be a part of another, by what both are made of and called."""
    for name, other in ((whole, part), (part, whole)):
        values = _values(module, function, name)
        if values is None or any(
            not isinstance(value, ast.Call) or _mentions(value, other) for value in values
        ):
            return True
        if name == whole and not values and _WHOLE.search(name):
            return True
    return any(_joins(statement, whole, part) for statement in statements(function))


def _joins(statement: ast.stmt, one: str, other: str) -> bool:
    """Whether a statement gives one model to another: ``model.head = head``."""
    if isinstance(statement, ast.Assign):
        holders = [t for t in statement.targets if isinstance(t, (ast.Attribute, ast.Subscript))]
        given: list[ast.AST] = [statement.value]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        holders = [n for n in [statement.value.func] if isinstance(n, ast.Attribute)]
        given = [*statement.value.args, *statement.value.keywords]
    else:
        return False
    return any(
        _mentions(holder, name) and any(_mentions(value, part) for value in given)
        for name, part in ((one, other), (other, one))
        for holder in holders
    )


def _values(
    module: ModuleFacts, function: FunctionNode | ast.Module, name: str
) -> list[ast.expr] | None:
    """What a model is made by; none where it is given from outside, None where that is unclear."""
    owner, _, attribute = name.rpartition(".")
    if not owner:
        found = module.flow(function).all_definitions(name)
        if any(d.value is None or d.index is not None for d in found):
            return None
        return [d.value for d in found if d.value is not None]
    cls = module.method_class(function)
    bindings = module.names.attributes(cls).get(attribute, []) if cls is not None else []
    if not bindings or any(b.value is None for b in bindings):
        return None
    return [b.value for b in bindings if b.value is not None and not _is_given(module, b.value)]


def _is_given(module: ModuleFacts, value: ast.expr) -> bool:
    """``self.actor = actor``, a parameter."""
    function = module.function(value)
    return (
        isinstance(value, ast.Name)
        and function is not None
        and value.id in module.flow(function).parameters
    )


def _mentions(node: ast.AST, name: str) -> bool:
    last = name.rpartition(".")[2]
    return any(
        (isinstance(n, ast.Name) and n.id == last)
        or (isinstance(n, ast.Attribute) and n.attr == last)
        for n in walk(node)
    )


def _holds_nothing(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call surely runs no model: torch's functions, tensor methods, losses, data."""
    function = call.func
    names = {target.name for target in module.resolve(function)}
    if names:
        return all(name.startswith(("torch.", "numpy.", "math.")) for name in names) or (
            isinstance(function, ast.Name) and function.id in _MAKES_DATA
        )
    last = last_name(call.func)
    if isinstance(function, ast.Name):
        if function.id in _MAKES_DATA:
            return True
        bindings = module.names.visible(function)
    elif isinstance(function, ast.Attribute):
        if is_tensor_method(last) or _DATA.search(module.source(function)):
            return True
        owner = function.value
        cls = module.names.self_class(owner)
        bindings = module.names.attributes(cls).get(last, []) if cls is not None else []
    else:
        return False
    if _TARGET.search(last):
        return True
    return bool(LOSS_CALL.search(last) and bindings) and all(
        _is_torchs_loss(module, binding) for binding in bindings
    )


def _is_torchs_loss(module: ModuleFacts, binding: Binding) -> bool:
    """``criterion = nn.BCELoss()``, or a parameter: others may hold models of their own."""
    if isinstance(binding.node, ast.arg) or (
        binding.value is not None and _is_given(module, binding.value)
    ):
        return True
    return isinstance(binding.value, ast.Call) and any(
        target.name.startswith("torch.nn.") for target in module.resolve(binding.value.func)
    )
