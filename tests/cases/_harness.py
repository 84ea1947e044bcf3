"""Shared one-step check used by every case's run()."""

import warnings

import torch


def check(ns):
    """ns: globals() of a case file with build(), loss_of(model) and optionally EXPECT, inspect(model)."""
    rep = {
        "loss_requires_grad": False,
        "params_without_grad": [],
        "error": None,
        "params_zero_grad": [],
        "loss": None,
        "grads": {},
        "warnings": [],
        "extra": {},
    }
    model = None
    with warnings.catch_warnings(record=True) as rec:
        warnings.simplefilter("always")
        try:
            torch.manual_seed(0)
            model = ns["build"]()
            torch.manual_seed(1)
            loss = ns["loss_of"](model)
            rep["loss_requires_grad"] = bool(loss.requires_grad)
            rep["loss"] = float(loss.detach())
            loss.backward()
        except Exception as e:  # the symptom itself
            rep["error"] = f"{type(e).__name__}: {e}"
        rep["warnings"] = sorted({str(r.message)[:160] for r in rec})
    if model is None:
        return rep
    have = dict(model.named_parameters())
    for name in ns.get("EXPECT") or list(have):
        p = have.get(name)
        g = None if p is None else p.grad
        if g is None:
            rep["params_without_grad"].append(name)
            continue
        g = g.detach().double()
        if not bool((g != 0).any()):
            rep["params_zero_grad"].append(name)
        probe = torch.cos(torch.arange(g.numel(), dtype=torch.float64) * 0.7 + 0.3).view(g.shape)
        rep["grads"][name] = [round(float(g.norm()), 7), round(float((g * probe).sum()), 7)]
    if "inspect" in ns and rep["error"] is None:
        rep["extra"] = ns["inspect"](model)
    return rep
