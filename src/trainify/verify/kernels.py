"""Finding the kernels: the libraries that own the ops are imported, nothing else is."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..catalog import FusedOp

# The modules that register ops under a name which is not their own.
_OWNERS = {
    **dict.fromkeys(("_C", "_C_cache_ops", "_rocm_C"), "vllm._custom_ops"),
    **dict.fromkeys(("_vllm_fa2_C", "_vllm_fa3_C"), "vllm.vllm_flash_attn"),
    "trtllm": "tensorrt_llm",
    "torch_ipex": "intel_extension_for_pytorch",
}


class Unavailable(Exception):
    """Why a kernel, or a function, cannot be had here."""


class Libraries:
    """The installed libraries, without what is under ``checked``: that code is not to be run."""

    def __init__(self, checked: Iterable[str] = ()) -> None:
        self.checked = tuple(os.path.realpath(path) for path in checked)

    def load(self, module: str) -> Any:
        """Import a module; raises :class:`Unavailable`."""
        root = module.partition(".")[0]
        try:
            spec = importlib.util.find_spec(root)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise Unavailable(f"{root} is not installed")
        places = [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
        if any(map(self._is_checked, places)):
            raise Unavailable(f"{root} is among the files looked at, of which none is run")
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                raise Unavailable(f"the {root} installed has no {module}") from None
            raise Unavailable(f"{module} cannot be imported: {error}") from None
        except Exception as error:
            raise Unavailable(f"{module} cannot be imported: {first_line(error)}") from None

    def _is_checked(self, place: str) -> bool:
        place = os.path.realpath(place)
        if re.search(r"[\\/](site|dist)-packages[\\/]", place):
            return False
        return any(os.path.commonpath((place, path)) == path for path in self.checked)

    def kernel(self, op: FusedOp, name: str) -> Callable[..., Any]:
        """The op under ``name``, else under another of its names; raises :class:`Unavailable`."""
        reason = None
        for each in dict.fromkeys((name, *op.names)):
            try:
                return self._registered(each, op) if _is_op(each) else self.named(each)
            except Unavailable as error:
                reason = reason or error
        assert reason is not None
        raise reason

    def named(self, name: str) -> Callable[..., Any]:
        """A function or class of a library; raises :class:`Unavailable`."""
        if not re.fullmatch(r"\w+(\.\w+)+", name):
            raise Unavailable("it is fetched from a hub, which verify does not do")
        parts = name.split(".")
        for length in range(len(parts) - 1, 0, -1):
            try:
                value = self.load(".".join(parts[:length]))
            except Unavailable as error:
                if length == 1 or " has no " not in str(error):
                    raise
                continue
            for part in parts[length:]:
                if not hasattr(value, part):
                    raise Unavailable(f"the {parts[0]} installed has no {name}")
                value = getattr(value, part)
            return value  # type: ignore[no-any-return]
        raise Unavailable(f"the {parts[0]} installed has no {name}")

    def _registered(self, name: str, op: FusedOp) -> Callable[..., Any]:
        """An op of ``torch.ops``; its library registers it when it is imported."""
        _, _, namespace, short = name.split(".")[:4]
        owners = [n.rpartition(".")[0] for n in op.names if re.fullmatch(r"(?!torch\.)[\w.]+", n)]
        reason = None
        for owner in (None, *owners, _OWNERS.get(namespace, namespace)):
            if owner is not None:
                try:
                    self.load(owner)
                except Unavailable as error:
                    reason = reason or error
            found: Callable[..., Any] | None = getattr(getattr(torch.ops, namespace), short, None)
            if found is not None:
                return found
        raise reason or Unavailable(f"no library installed registers {name}")


def _is_op(name: str) -> bool:
    return name.startswith("torch.ops.")


def first_line(error: BaseException) -> str:
    """An exception on one line."""
    text = str(error).strip().split("\n")[0][:100]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
