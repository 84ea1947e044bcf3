"""How a list or dict of an object is used: whether what it holds runs, or is given away."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.guards import gradient_unwanted
from ...facts.memo import once
from ...facts.names import last_name
from ...facts.walk import walk
from .loops import loops_around, loops_of, stored_names

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def uses_of(module: ModuleFacts, cls: ast.ClassDef, name: str) -> list[ast.Attribute]:
    """Every ``self.name`` in the methods of a class but those that are assigned."""
    return [
        use
        for use in module.names.uses(cls, name)
        if isinstance(use.ctx, ast.Load) or isinstance(module.parent(use), ast.AugAssign)
    ]


_MANAGED = frozenset(
    "parameters named_parameters state_dict load_state_dict modules named_modules children "
    "requires_grad_ eval to cuda".split()
)


def is_managed(module: ModuleFacts, name: str) -> bool:
    """Whether code of the file sees to the held modules by hand: ``m.layers[0].parameters()``."""
    for node in _managed(module):
        if _mentions(node.value, name):
            return True
        if isinstance(node.value, ast.Name) and any(
            _mentions(source, name) and node.value.id in stored_names(target)
            for target, source in loops_around(module, node)
        ):
            return True
    return False


@once
def _managed(module: ModuleFacts) -> list[ast.Attribute]:
    return [n for n in walk(module.tree) if isinstance(n, ast.Attribute) and n.attr in _MANAGED]


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == name for n in walk(node))


_LOOKS = frozenset(
    "len enumerate zip reversed iter list tuple range bool print isinstance sorted".split()
)
_COPIES = frozenset("list tuple reversed sorted iter".split())


def gives_away(module: ModuleFacts, use: ast.expr) -> bool:
    """Whether something else gets the whole list: ``nn.ModuleList(self.layers)``, ``return``.

    A part of it counts as the whole, and a local name as the list.
    """
    parent = module.parent(use)
    if isinstance(parent, ast.Subscript) and is_part(parent, use):
        return gives_away(module, parent)
    if isinstance(parent, ast.Assign):
        again = _kept_as(module, parent)
        if again is not None:
            return any(gives_away(module, each) for each in again)
        return _is_spread(module, parent)
    if isinstance(parent, ast.Starred):
        parent = module.parent(parent)
    if isinstance(parent, ast.Call) and use is not parent.func:
        if isinstance(parent.func, ast.Name) and parent.func.id in _LOOKS:
            return parent.func.id in _COPIES and gives_away(module, parent)
        drawn = last_name(parent.func)
        return drawn != "shuffle" and (drawn != "sample" or gives_away(module, parent))
    return isinstance(parent, (ast.Return, ast.keyword, ast.List, ast.Tuple, ast.Dict, ast.Lambda))


def is_part(parent: ast.Subscript, use: ast.expr) -> bool:
    """``self.layers[1:]``."""
    return (
        parent.value is use
        and isinstance(parent.slice, ast.Slice)
        and isinstance(parent.ctx, ast.Load)
    )


def _is_spread(module: ModuleFacts, statement: ast.Assign) -> bool:
    """Whether local names for a list, or for what is in it, give that away in turn."""
    names = _local_names(module, statement)
    if names is None:
        return True
    lists, elements = names
    for read in lists:
        if isinstance(module.parent(read), (ast.Attribute, ast.AugAssign)):
            return True  # order.append(layer)
        if gives_away(module, read):
            return True
    return any(
        not (_is_called(module, read) or isinstance(module.parent(read), ast.Compare))
        for read in elements
    )


def _kept_as(module: ModuleFacts, statement: ast.Assign) -> list[ast.Attribute] | None:
    """The uses of another attribute that holds the same, and nothing else: ``self.order``."""
    target = statement.targets[0]
    if len(statement.targets) > 1 or not isinstance(target, ast.Attribute):
        return None
    cls = module.names.self_class(target.value)
    if cls is None or target.attr in module.rebound:
        return None
    if len(module.names.attributes(cls).get(target.attr, ())) != 1:
        return None
    return uses_of(module, cls, target.attr)


def _local_names(
    module: ModuleFacts, statement: ast.Assign
) -> tuple[list[ast.Name], list[ast.Name]] | None:
    """The reads of names for a list and for its elements; None where names do not hold it all.

    ``rest`` and ``last`` of ``*rest, last = self.layers``.
    """
    function = module.function(statement)
    target = statement.targets[0] if len(statement.targets) == 1 else None
    if function is None or not isinstance(target, (ast.Name, ast.Tuple, ast.List)):
        return None
    found: tuple[list[ast.Name], list[ast.Name]] = [], []
    for part in [target] if isinstance(target, ast.Name) else target.elts:
        of_list = part is target or isinstance(part, ast.Starred)
        name = part.value if isinstance(part, ast.Starred) else part
        if not isinstance(name, ast.Name):
            return None
        flow = module.flow(function)
        if name.id in flow.parameters or len(flow.all_definitions(name.id)) > 1:
            return None
        found[not of_list].extend(
            n
            for n in walk(function)
            if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load)
        )
    return found


def with_names(module: ModuleFacts, uses: list[ast.Attribute]) -> list[ast.expr]:
    """The uses of a list, those by local names included: ``order = self.layers[:]``."""
    found: list[ast.expr] = list(uses)
    for use in found:  # grows meanwhile
        assigned = _assigned_to(module, use)
        again = _kept_as(module, assigned) if assigned is not None else None
        if again is not None:
            found += [each for each in again if each not in found]
            continue
        names = _local_names(module, assigned) if assigned is not None else None
        if names is not None:
            found += [read for read in names[0] if read not in found]
    return found


def _assigned_to(module: ModuleFacts, use: ast.expr) -> ast.Assign | None:
    """The statement that gives a list, a part or a copy of it, to local names."""
    parent = module.parent(use)
    while (isinstance(parent, ast.Subscript) and is_part(parent, use)) or (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id in _COPIES
        and parent.args[:1] == [use]
    ):
        use, parent = parent, module.parent(parent)
    return parent if isinstance(parent, ast.Assign) and parent.value is use else None


READS = re.compile(r"torch\.(nn\.functional\.)?[a-z]\w*$|math\.prod$")


def is_read(module: ModuleFacts, use: ast.expr) -> bool:
    """Whether a list is an operand: ``sum(self.ws)``, ``torch.stack(tuple(self.ws))``."""
    parent = module.parent(use)
    if isinstance(parent, ast.Starred):
        parent = module.parent(parent)
    if not isinstance(parent, ast.Call) or parent.func is use:
        return False
    if isinstance(parent.func, ast.Name) and parent.func.id in ("list", "tuple"):
        return is_read(module, parent)
    if isinstance(parent.func, ast.Name) and parent.func.id == "sum":
        return True
    return any(READS.match(target.name) for target in module.resolve(parent.func))


def runs_element(
    module: ModuleFacts, use: ast.expr, builder: FunctionNode, parameters: bool
) -> bool:
    """Whether a use of the list runs an element of it (reads one, where it holds parameters)."""
    function = module.function(use)
    if function is None or function is builder or gradient_unwanted(module, use):
        return False
    parent = module.parent(use)
    if parameters and is_read(module, use):
        return True
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Load):
        if not isinstance(parent.slice, ast.Slice):
            return parameters or _is_run(module, function, parent)
    if isinstance(parent, ast.Attribute) and parent.attr in ("get", "setdefault"):
        call = module.parent(parent)
        if isinstance(call, ast.Call) and call.func is parent:
            return parameters or _is_run(module, function, call)
    assigned = _assigned_to(module, use)
    names = _local_names(module, assigned) if assigned is not None else None
    if names is not None and any(parameters or _is_called(module, each) for each in names[1]):
        return True
    for loop in module.ancestors(use):
        if loop is function:
            break
        for target, source in loops_of(loop):
            if any(node is use for node in walk(source)):
                stored = stored_names(target)
                return any(
                    isinstance(node, ast.Name)
                    and node.id in stored
                    and isinstance(node.ctx, ast.Load)
                    and (parameters or _is_called(module, node))
                    for node in walk(loop)
                )
    return False


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


def _is_run(module: ModuleFacts, function: FunctionNode, element: ast.expr) -> bool:
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
