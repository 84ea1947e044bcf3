"""An audit against one forward and backward of the same model, in time and in memory.

Run in a process of its own, since it needs torch; prints what it measured as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .measure import Result, cpu_seconds, exact, in_own_process, interleaved, ratio, spread, tell
from .models import peak_bytes

ROUNDS = 5
MODELS = ((4, 2, 32), (4, 4, 256), (24, 2, 32), (24, 4, 128))
"""Layers, batch, length."""
MEMORY = "peak of tensor memory"


def results() -> Iterator[Result]:
    return in_own_process(__name__)


def main() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import trainify

    torch.manual_seed(0)
    torch.set_num_threads(1)
    for layers, batch, length in MODELS:
        config = LlamaConfig(
            vocab_size=1024,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=4,
        )
        model = LlamaForCausalLM(config)
        ids = torch.randint(config.vocab_size, (batch, length))

        def step(model=model, ids=ids) -> None:
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            model.zero_grad()

        def audit(proof: bool, model=model, ids=ids) -> None:
            report = trainify.audit(model, input_ids=ids, labels=ids, use_cache=False, proof=proof)
            assert report.ok and bool(report.proof) == proof, report

        work = {"step": step, "structural": partial(audit, False), "proof": partial(audit, True)}
        runs = {name: partial(cpu_seconds, each) for name, each in work.items()}
        interleaved(1, runs)
        times = interleaved(ROUNDS, runs)
        what = f"audit of {layers} layers, {batch}x{length} tokens"
        peaks = {name: peak_bytes(each) for name, each in work.items()}
        tell(
            (
                spread(f"{what}: forward and backward", times["step"], "s"),
                ratio(f"{what}: against that", times["structural"], times["step"], 5.0),
                ratio(f"{what}: and proven in float64", times["proof"], times["step"], 10.0),
                *(
                    exact(f"{what}: {name}, {MEMORY}", peaks[each] / peaks["step"], "x")
                    for name, each in (("against that", "structural"), ("and proven", "proof"))
                ),
            )
        )


if __name__ == "__main__":
    main()
