"""What an optimizer was given: ``Adam(filter(lambda p: p.requires_grad, model.parameters()))``."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...facts import ModuleFacts


@dataclass(frozen=True)
class Given:
    """An optimizer that is built for the parameters of a model, or of a part of it."""

    statement: ast.Assign
    optimizer: str
    """The text of what it is assigned to."""
    model: str
    """The text of what the parameters are of: ``model``, ``self.net.body``."""
    filtered: bool
    """Whether it gets only those that require a gradient at that time."""
    parameters: ast.expr
    """The argument that says which."""


def given_to(module: ModuleFacts, statement: ast.stmt) -> Given | None:
    """What the optimizer gets that a statement builds, if it builds one."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    call = statement.value
    if not isinstance(call, ast.Call) or not (call.args or call.keywords):
        return None
    if not any(t.name.startswith("torch.optim.") for t in module.resolve(call.func, statement)):
        return None
    parameters: ast.expr = call.args[0] if call.args else call.keywords[0].value
    given, filtered = parameters, False
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Name):
        taken = given.func.id
        if taken == "filter" and len(given.args) == 2:
            filtered = "requires_grad" in ast.unparse(given.args[0])
            given = given.args[1]
        elif taken == "list" and len(given.args) == 1:
            given = given.args[0]
    if isinstance(given, (ast.ListComp, ast.GeneratorExp)) and len(given.generators) == 1:
        tests = given.generators[0].ifs
        filtered = len(tests) == 1 and ast.unparse(tests[0]).endswith(".requires_grad")
        if tests and not filtered:
            return None
        given = given.generators[0].iter
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        if given.func.attr in ("parameters", "named_parameters") and not given.args:
            owner = given.func.value
            if isinstance(owner, (ast.Name, ast.Attribute)):
                optimizer = ast.unparse(statement.targets[0])
                return Given(statement, optimizer, ast.unparse(owner), filtered, parameters)
    return None
