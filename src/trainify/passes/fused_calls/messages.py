"""What is said of a call of a fused op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...catalog import Row, split_since
from .site import Site

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts import ModuleFacts
    from ...facts.cache_writes import CacheWrite


def message_of(site: Site) -> str:
    name = site.module.source(site.call.func)
    tensors = [f"`{site.shown(n)}`" for n in site.lost]
    overwritten = [f"`{site.shown(n)}`" for n in site.in_place]
    if overwritten:
        others = [t for t in tensors if t not in overwritten]
        text = (
            f"`{name}` overwrites {_and(overwritten)} in place and autograd does not see it: what "
            f"comes before gets a wrong gradient"
        )
        text += f", {_and(others)} none." if others else "."
    else:
        text = f"`{name}` records no backward: no gradient reaches {_and(tensors) or 'its inputs'}."
        if site.op.loses:
            text = f"`{name}` has no derivative for {_and(tensors)}: it raises where one is wanted."
    detached = [
        f"`{site.module.source(node)}`"
        for n in site.lost
        if (node := site.bound[n]) is not None and site.shown(n) != site.module.source(node)
    ]
    if detached:
        text += f" {_and(detached)} cuts the gradient a second time."
    if site.cached:
        names = _and([f"`{name}`" for name in site.cached])
        text += f" {names} {_get(site.cached)} none either, through the cache."
    return text


def lost_in_cache(module: ModuleFacts, write: CacheWrite) -> str:
    """What is said of a write into a cache that attention reads."""
    names = _and([f"`{name}`" for name in write.fresh])
    reader = module.source(write.reads[0].func)
    return (
        f"{names} {_get(write.fresh)} no gradient through the cache that `{reader}` reads: "
        "attend to the fresh ones where all of a sequence is fresh."
    )


def _get(names: Sequence[str]) -> str:
    return "gets" if len(names) == 1 else "get"


def release_of(op: Row, options: Options) -> str:
    """For which release something is right, and why that one, where it makes a difference."""
    if not op.since:
        return ""
    library, _ = split_since(op)
    stated = next((r for r in options.releases if r.library == library), None)
    if stated is None:
        return f" (As in {op.since}: nothing says which release is used, so the newest is assumed.)"
    return f" (As in {stated}, says {stated.source}.)"


def _and(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
