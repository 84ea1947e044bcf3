"""Times side by side, and what can be said of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")

# glibc maps each block of 32 MiB or more anew and gives it back when it is freed, so whoever has a
# few such tensors pays for page faults at every step.  Training runs on allocators that keep what
# they got, as torch's on a GPU does, and so do the models here.  Which pages a tensor lies on makes
# some percent of difference between two copies of one model; huge ones leave less to chance.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "THP_MEM_ALLOC_ENABLE": "1",
}


@dataclass(frozen=True)
class Result:
    """One line of the report; ``target`` is the largest value that passes, if there is one.

    Ratios (unit ``x``) are held against their target to two decimals, which targets have.
    """

    what: str
    value: float
    unit: str
    low: float
    high: float
    target: float | None = None

    @property
    def passed(self) -> bool:
        value = round(self.value, 2) if self.unit == "x" else self.value
        return self.target is None or value <= self.target


def in_own_process(module: str) -> Iterator[Result]:
    """What a module tells when it is run: those that need torch are kept out of this process."""
    output = subprocess.run(
        [sys.executable, "-m", module],
        env=os.environ | KEEP_MEMORY,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    for line in output.splitlines():
        yield Result(**json.loads(line))


def tell(results: Iterable[Result]) -> None:
    """Print results for :func:`in_own_process`."""
    for each in results:
        print(json.dumps(asdict(each)))


def interleaved(rounds: int, what: Mapping[K, Callable[[], T]]) -> dict[K, list[T]]:
    """Do each thing once per round, in an order that turns, so that drift hits all alike."""
    found: dict[K, list[T]] = {name: [] for name in what}
    names = list(what)
    for i in range(rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(what[name]())
    return found


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of a single thread this is what the clock on the wall says when nothing else runs."""
    start = time.process_time()
    work()
    return time.process_time() - start


def side_by_side(
    rounds: int,
    what: Mapping[K, Callable[[], object]],
    before: Callable[[K], object] = lambda name: None,
) -> dict[K, list[float]]:
    """CPU seconds of each thing, round by round, in forked processes that share one core.

    The speed of a machine changes by some percent within a second, more than what is to be told
    apart.  The scheduler hands the core on every few milliseconds, so each change hits all alike.
    Where a process happens to lie in memory makes half a percent, so there are new ones now and
    then.  ``before`` is called with the name before each round, and does not count.
    """
    times: dict[K, list[float]] = {name: [] for name in what}
    for _ in range(rounds // _BY_A_PROCESS):
        for name, found in _forked(what, before).items():
            times[name] += found
    return times


_BY_A_PROCESS = 5


def _forked(
    what: Mapping[K, Callable[[], object]], before: Callable[[K], object]
) -> dict[K, list[float]]:
    context = multiprocessing.get_context("fork")
    done = context.Value("i", 0)
    core = max(os.sched_getaffinity(0))

    def run(name: K, pipe: Connection) -> None:
        os.sched_setaffinity(0, {core})
        before(name)
        times = []
        for number in range(1 + _BY_A_PROCESS):
            times.append(cpu_seconds(what[name]))
            with done.get_lock():
                done.value += 1
            before(name)
            while done.value < len(what) * (number + 1):  # so that nobody has the core for longer
                before(name)
        pipe.send(times[1:])  # the first compiles and warms up

    receiving = {}
    for name in what:
        receiving[name], sending = context.Pipe(duplex=False)
        context.Process(target=run, args=(name, sending), daemon=True).start()
        sending.close()  # so that the end of a process that failed is the end of its pipe
    return {name: pipe.recv() for name, pipe in receiving.items()}


def spread(what: str, values: Sequence[float], unit: str, target: float | None = None) -> Result:
    """The median, and the quartiles around it."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Result(what, median(values), unit, low, high, target)


def exact(what: str, value: float, unit: str, target: float | None = None) -> Result:
    """What comes out the same on every run."""
    return Result(what, value, unit, value, value, target)


def ratio(
    what: str, ours: Sequence[float], theirs: Sequence[float], target: float | None = None
) -> Result:
    """Of the two times of each round."""
    return spread(what, [a / b for a, b in zip(ours, theirs, strict=True)], "x", target)


@dataclass(frozen=True)
class Usage:
    """What a process took: its own and its children's CPU time, the largest of their peaks."""

    wall: float
    cpu: float
    megabytes: float


ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Packages are installed with their bytecode; compiling ours each time is nothing to measure."""


def usage(command: Sequence[str], cwd: str) -> Usage:
    """Run a command to its end.

    The peak of a process includes what it was forked from, so the caller has to be small.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=cwd, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: findings
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    peak = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return Usage(wall, used.ru_utime + used.ru_stime, peak)
