"""A scope taken off a forward, or made to follow the training flag."""

from __future__ import annotations

import ast

from ...facts import ModuleFacts
from ...facts.comments import with_comments
from ...facts.layers import training_flag
from ...findings import Edit
from .cover import Cover, is_decorator


def take_off(module: ModuleFacts, cover: Cover) -> list[Edit]:
    """Take the scope off the forward; an empty list where that is not possible."""
    from ...rewrite import scopes

    wraps, wrapper = cover.scope.wraps, cover.wrapper
    if isinstance(cover.scope.owner, ast.ClassDef):
        return []  # what else its decorator does, nobody knows
    if isinstance(wrapper, ast.Assign) and wraps is not None:
        if module.source(wrapper.targets[0]) == module.source(wraps.args[0]):
            edit = scopes.without_statement(module, wrapper)
            return [edit] if edit is not None else []
    return scopes.removal(module, cover.scope)


def follow_training(module: ModuleFacts, cover: Cover) -> list[Edit]:
    """Have the scope follow ``self.training``; around the body where it stood outside."""
    from ...rewrite import layout
    from ...rewrite.scopes import end_line

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
    if not is_decorator(cover) and cover.wrapper is None:
        if module.source(cover.scope.node).endswith("__enter__()"):
            return []
        return [Edit(module.start(cover.scope.node), module.end(cover.scope.node), scope)]
    removal = take_off(module, cover)
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
