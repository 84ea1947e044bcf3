"""Where the bytes of a file seem to write in place, found without parsing it.

Most files hold no write that matters, so all of this errs towards seeing one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache

from .saving_ops import INPUT_SAVED, WHOLE_SAVED
from .words import declare, places, undeclared

_ASSIGNING = declare(b"+= ", b"-= ", b"*= ", b"/= ", b"&= ", b"|= ", b"] = ")
_CALLED, _ASKED, *_MAY_ASK = declare(b"_(", b"inplace=True", b"LU(", b"elu(", b"ropout(")
SIGNS = (*_ASSIGNING, _CALLED, _ASKED, *_MAY_ASK)
"""What a file needs for :func:`writes` to find something."""
_NAME = re.compile(rb"[ \t]*(\w+)")
_WRITTEN = re.compile(rb"[ \t]*(?:self\.)?(\w+)")
_METHOD = re.compile(
    rb"\b(\w+)(?:\.\w+\([^()]*\)|\[[^\]]*\]|\.(?:data|T|mT|real|imag))*\.[a-z]+(?:_[a-z]+)*$"
)
_FUNCTION = re.compile(
    rb"\b(?:(?:leaky_|r)?relu6?|[sc]?elu|silu|mish|hard\w+|\w*dropout\w*|threshold)"
    rb"(\()[^\n]*$"
)
"""The function that is asked to write into its argument."""
_MADE_IN_PLACE = re.compile(
    rb"self\.(\w+)(?:: [\w.]+)? = (?:[\w.]*Sequential\(\s*)?[\w.]*(?:LU6?|Mish|Hard\w+|Dropout\w*|"
    rb"Threshold)\([^()\n]*$"
)
"""The module that is made to write into its argument, or to begin with that."""
_GIVEN = re.compile(rb"\(\s*([A-Za-z_]\w*)[\s,)\[]")
_INITIALIZED = re.compile(rb"\binit\.\w+_$")
_INERT = (b"requires_grad", b"normal", b"uniform", b"init", b"constant", b"zeros", b"ones", b"_")
_PLAIN = re.compile(
    rb"(?:self|model|torch|np|\w*(?:loss|masks?|labels?|ids?|dict|kwargs|idx|indices|index|positions?|"
    rb"args|config|table)|grid\w*|_\w+|init|num\w*|rand\w*|[a-z]+_pixels)$"
)
_COUNTER = re.compile(rb"[ij] [+-]= 1[ \t]*[\r\n#]")
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_REACH = 1500
"""Bytes around a write in which the operation that it harms may stand."""
_NEAR = 160
"""Bytes before a method in which the call that made its tensor may begin."""


@lru_cache(maxsize=2)
def writes(data: bytes) -> tuple[tuple[int, bytes], ...]:
    """(offset, name) of what looks like ``name += x``, ``name[:n] = x`` or ``name.f_()``."""
    if b"def forward" not in data and not _may_train(data):
        return ()
    found = {at: _first_name(data, at) for sign in _ASSIGNING for at in places(data, sign)}
    for at in in_place_calls(data):
        match = _GIVEN.match(data, at)
        found[at] = match[1] if match else b""
    for at in places(data, _CALLED):
        begin = max(data.rfind(b"\n", 0, at) + 1, at - 200)
        if not data.endswith(_INERT, begin, at) and data.find(b".", begin, at) > 0:
            match = _METHOD.search(data, begin, at)
            found[at] = match[1] if match else b""
    return tuple((at, name) for at, name in found.items() if name and not _PLAIN.match(name))


@lru_cache(maxsize=2)
def in_place_calls(data: bytes) -> tuple[int, ...]:
    """Where the arguments begin of calls that overwrite their first one, methods left out."""
    found = set()
    modules = set()
    for at in _asking(data):
        line = data.rfind(b"\n", 0, at) + 1
        asked = _FUNCTION.search(data, line, at)
        made = None if asked else _MADE_IN_PLACE.search(data, max(0, line - _NEAR), at)
        if asked is not None:
            found.add(asked.start(1))
        elif made is not None:
            modules.add(made[1])
    for name in modules:
        found.update(at + len(name) + 1 for at in undeclared(data, b".%s(" % name))
    for at in places(data, _CALLED):
        begin = max(0, at - 40)
        dot = data.rfind(b".", begin, at)
        of_torch = dot > 0 and data.endswith((b"F", b"torch"), begin, dot)
        if of_torch or (
            data.endswith(_INERT, begin, at) and _INITIALIZED.search(data, begin, at + 1)
        ):
            found.add(at + 1)
    return tuple(found)


def _may_train(data: bytes) -> bool:
    """Whether functions outside of a network may be a part of training, or a step of it."""
    return b".backward(" in data or (b"\ndef " in data and b"nn.functional" in data)


@lru_cache(maxsize=2)
def goes_back(data: bytes) -> bool:
    """Whether a file calls ``backward``, or hands it on: by whatever name, but not in its prose."""
    return _BACKWARD.search(data) is not None


_BACKWARD = re.compile(rb"backward(?:\w*[ \t]*\(|[ \t]*[,)=]|[ \t]*\r?\n)")

_OUTERMOST = re.compile(rb"\n[^\s#)\]}]")
"""A line that is not indented: a statement's, or one in a string."""


def may_be_trained(data: bytes, at: int) -> bool:
    """Whether training may lead through a place: not in methods of a class without a forward.

    Where ``backward`` is called, by whatever name, it may lead through any.
    """
    start = data.rfind(b"\nclass ", 0, at)
    if start < 0 or data.find(b"def forward", start, at) >= 0:
        return True
    if _OUTERMOST.search(data, start + 1, at) or goes_back(data):
        return True
    after = _OUTERMOST.search(data, at)
    return data.find(b"def forward", at, after.start() if after else len(data)) >= 0


_HEADS = frozenset((b"if", b"elif", b"else", b"for", b"while", b"with"))


def _begin(data: bytes, at: int) -> int:
    """Where a statement begins, which others may share the line with."""
    line = data.rfind(b"\n", 0, at) + 1
    return data.rfind(b";", line, at) + 1 or line


def _first_name(data: bytes, at: int) -> bytes:
    begin = _begin(data, at)
    match = _WRITTEN.match(data, begin, at)
    if match is not None and match[1] in _HEADS:  # if x: y += 1
        match = _WRITTEN.match(data, data.rfind(b":", begin, at) + 1, at)
    if match is None or data[match.end() : match.end() + 1] == b":" or data[at - 1 : at] == b"/":
        return b""  # name: int = 0, name //= 2
    if _COUNTER.match(data, match.start(1)):
        return b""
    if data[at : at + 4] == b"+= (" and data.endswith(b",)", at, data.find(b"\n", at)):
        return b""  # a tuple
    if data[at : at + 1] == b"]" and data[at - 1 : at] in (b'"', b"'"):
        return b""  # a dict
    return match[1]


_LAYERS = tuple(
    name.encode()
    for name in (
        "norm norm1 norm2 norm3 norm_ lin proj linear linear1 linear2 fc fc1 fc2 conv conv1 conv2 "
        "dense ln ln1 ln2 ln_1 ln_2 ln_f gate bmm matmul mm outer to_q to_k to_v .q .k .v .o .w1 "
        ".w2 .w3 .wq .wk .wv .wo cell gru lstm rnn"
    ).split()
)
_FUNCTIONS = (*_LAYERS, *(f".{name}".encode() for name in sorted(INPUT_SAVED)))
_METHODS = tuple(f".{name}(".encode() for name in sorted(INPUT_SAVED | {"matmul", "mm", "bmm"}))
_WHOLE = tuple(f"torch.{name}".encode() for name in sorted(WHOLE_SAVED))
_OVER_ALL = re.compile(rb"\.(?:%s)\(\)(?! [<>=!])" % "|".join(sorted(WHOLE_SAVED)).encode())
"""``x.max()``, unless that is compared with something."""
_OPERATIONS = (
    *(b" ** ", b"**", b" @ ", b" * self."),
    *(b".float().pow(", b".to(torch.float32).pow(", b".detach().pow("),
)
_ALIAS = re.compile(
    rb"(\w+)(?:\.(?:float|to|view|transpose|permute|narrow|select|diagonal|squeeze|unsqueeze)\([^\n]*"
    rb"|\.m?T|\[[^\n]*)?\r?\n"
)


def overwrites_saved_input(data: bytes) -> bool:
    """Whether a name is written near to an operation that may have saved it."""
    return any(
        (
            (_saved_nearby(data, at, name) and not _is_of_list(data, at, name))
            or any(_saved_nearby(data, call, given) for call, given in arguments(data, at, name))
        )
        and may_be_trained(data, at)
        for at, name in writes(data)
    )


_ELEMENT = re.compile(rb"[ \t]*(\w+)\[[^\]:,.\n]+\] = ")


def _is_of_list(data: bytes, at: int, name: bytes) -> bool:
    """Whether ``name[i] = x`` puts something into what its function was given, not computed.

    Of what has no more than a name, nothing says that it is one tensor rather than a list of them.
    """
    line = data.rfind(b"\n", 0, at) + 1
    match = _ELEMENT.match(data, line)
    begin = data.find(b":\n", data.rfind(b"def ", 0, line))  # behind its parameters
    if match is None or match[1] != name or not 0 <= begin < line:
        return False
    for _ in range(2):
        bound = re.findall(rb"\b%s\b(?!\[)[^=\n]*=(?!=)([^\n]*)" % name, data[begin:line])
        if any(_NO_NAME.search(value) and not _LIST.match(value) for value in bound):
            return False
        if len(bound) != 1:
            break
        name = bound[0].strip()
    return True


_NO_NAME = re.compile(rb"[^\w\s]")
_LIST = re.compile(rb" (?:\[|list\()[^\n]*[\])]$")


def chained(data: bytes, maker: Maker, methods: tuple[bytes, ...] = ()) -> bool:
    """Whether a result is written at once, by a method of the call: ``torch.exp(x).add_(1)``.

    ``methods`` are those that make it in place: ``x.exp_().add_(1)``.
    """
    for at in places(data, _CALLED):
        dot = data.rfind(b".", max(0, at - 20), at)
        if dot > 0 and data[dot - 1 : dot] == b")" and not data.endswith(_INERT, dot, at):
            begin = max(0, dot - _NEAR)
            made = maker(data, begin, dot) or (methods and _calls_one(data, begin, dot, methods))
            if made and may_be_trained(data, at):
                return True
    return any(
        maker(data, at, data.find(b"\n", at)) and may_be_trained(data, at)
        for at in in_place_calls(data)
    )


def _asking(data: bytes) -> Iterator[int]:
    """Where a function or a module is told to work in place: by name, or by the last argument."""
    yield from places(data, _ASKED)
    for word in _MAY_ASK:
        for at in places(data, word):
            told = data.find(b"True)", at, at + _SHORT)
            if told > 0 and b"\n" not in data[at:told]:
                yield told


_SHORT = 60
_ROW = re.compile(
    rb"(?:LU|Sigmoid|Tanh|Softm\w+|LogSoftmax)\((?:[^()]|\([^()]*\))*\)\s*,\s*(?:#[^\n]*\s*)*"
    rb"(?:[\w.]*(?:Identity|latten)\([^()]*\)\s*,\s*)?[\w.]+\([^()]*$"
)


def in_a_row(data: bytes) -> bool:
    """Whether a module that overwrites its input stands behind one that saves its result."""
    return any(_ROW.search(data, max(0, at - _NEAR), at) for at in _asking(data))


Maker = Callable[[bytes, int, int], object]
"""Looks for an operation between two offsets, as the ``search`` of a pattern does."""


def overwrites(data: bytes, maker: Maker, methods: tuple[bytes, ...] = ()) -> bool:
    """Whether a name is written shortly after some operation made its value.

    ``methods`` are those that make it in place: ``tanh_(``.
    """
    return any(
        (
            _made_by(data, at, name, maker, methods)
            or any(
                _made_by(data, call, given, maker, methods)
                or maker(data, call, data.find(b"\n", call))  # made as it is passed
                for call, given in arguments(data, at, name)
            )
        )
        and may_be_trained(data, at)
        for at, name in writes(data)
    )


_SHOWN = re.compile(rb"[(\[][a-z]\w*(?:, [a-z]\w*)*,?[)\]]")
"""A display of names, of which one may be what an operation made: ``(q, k)``."""
_FOR = re.compile(rb"\bfor (?:\w+, ?)?$")


def _made_by(data: bytes, at: int, name: bytes, maker: Maker, methods: tuple[bytes, ...]) -> bool:
    begin = max(0, at - _REACH, data.rfind(b"\n    def ", 0, at))
    here = _begin(data, at)
    if not maker(data, begin, here) and not (methods and _calls_one(data, begin, at, methods)):
        return False
    bound, elements = data.rfind(name, begin, here), False
    while bound >= 0:
        line = _begin(data, bound)
        behind = bound + len(name)
        equals = data.find(b"=", behind, min(bound + 60, data.find(b"\n", bound)))
        if (
            data[behind : behind + 1] in b"[."
            or _is_word(data, behind)
            or _is_word(data, bound - 1)
        ):
            pass  # what is written into it does not make it, nor does another name
        elif data.startswith(b" in ", behind) and _FOR.search(data, line, bound):
            counted = data.startswith(b"enumerate(", behind + 4)
            looped = _NAME.match(data, behind + (14 if counted else 4))
            if maker(data, bound, data.find(b"\n", bound) + 1):
                return True
            if _SHOWN.match(data, behind + (14 if counted else 4)):
                return True
            name, elements = (looped[1] if looped is not None else name), True
        elif equals >= 0 and not data[line:bound].strip(b" \t\r\n(,_." + _LETTERS):
            end = data.find(b"\n", equals) + 1
            if maker(data, equals, end) or (methods and _calls_one(data, equals, end, methods)):
                return True
            if elements and _SHOWN.match(data, equals + 2):
                return True
            alias = _ALIAS.match(data, equals + 2)
            if alias is not None:  # of another name, or x = x.view(...), which x was before
                name = alias[1]
            elif not data.startswith(name, equals + 2):
                break
        bound = data.rfind(name, begin, bound)
    called = name + b"."
    at_call = data.find(called, begin, at) if methods else -1
    while at_call >= 0:
        if data.startswith(methods, at_call + len(called), at):
            return True
        at_call = data.find(called, at_call + 1, at)
    return bool(methods) and any(
        begin <= given < at and (match := _GIVEN.match(data, given)) and match[1] == name
        for given in in_place_calls(data)
    )


def _calls_one(data: bytes, begin: int, end: int, methods: tuple[bytes, ...]) -> bool:
    """Whether one of some methods that work in place is called between two offsets."""
    called = places(data, _CALLED)
    first, last = bisect_left(called, begin), bisect_left(called, end)
    return any(data.endswith(methods, begin, at + len(_CALLED)) for at in called[first:last])


def _saved_nearby(data: bytes, at: int, name: bytes) -> bool:
    begin = max(0, at - _REACH, data.rfind(b"    def ", 0, at))
    end = data.find(b"\n", at)
    line = data.rfind(b"\n", 0, at) + 1
    bound = data.rfind(b" " + name + b" = ", begin, line)
    if bound >= 0:
        alias = _ALIAS.match(data, bound + len(name) + 4)
        if alias and alias[1] != name and _saved(data, begin, end, alias[1], name):
            return True
        begin = data.find(b"\n", bound)
    if _saved(data, begin, end, name, name):
        return True
    if data.find(b" for ", max(0, at - _REACH), at) >= 0 or _is_parameter(data, at, name):
        return _saved(data, end, _end_of_block(data, at, end), name, name, products=True)
    return False


def _is_parameter(data: bytes, at: int, name: bytes) -> bool:
    begin = data.rfind(b"def ", 0, at)
    if begin < 0 or data.startswith(b"def forward(", begin):
        return False
    end = data.find(b":\n", begin)
    given = data.find(name, begin, end)
    while given >= 0 and (_is_word(data, given - 1) or _is_word(data, given + len(name))):
        given = data.find(name, given + 1, end)
    return given >= 0


def function_around(data: bytes, at: int) -> int:
    """Where the ``def`` is of the function around a place; negative where there is none."""
    depth = _depth(data, at)
    function = data.rfind(b"def ", 0, at)
    while function >= 0 and _depth(data, function) >= depth:
        function = data.rfind(b"def ", 0, function)
    return function


def _end_of_block(data: bytes, at: int, end: int) -> int:
    """Where the first line stands that is less deep than the one of ``at``."""
    depth = _depth(data, at)
    limit = min(len(data), end + _REACH)
    while 0 <= end < limit:
        if data[end + 1 : end + 2] not in (b"\n", b"\r") and _depth(data, end + 1) < depth:
            return end
        end = data.find(b"\n", end + 1)
    return limit


def _depth(data: bytes, at: int) -> int:
    begin = data.rfind(b"\n", 0, at) + 1
    line = data[begin : begin + 80]
    return len(line) - len(line.lstrip(b" \t"))


def _saved(
    data: bytes, begin: int, end: int, name: bytes, bound: bytes, *, products: bool = False
) -> bool:
    """Whether ``name`` is an operand on a line that does not bind ``bound`` anew.

    ``products`` counts those with anything, not only with what belongs to the object.
    """
    at = data.find(name, begin, end)
    while at >= 0:
        behind = at + len(name)
        if _is_operand(data, at, behind, products):
            match = _NAME.match(data, _begin(data, at), at)
            if match is None or match[1] != bound or data[match.end() : match.end() + 2] != b" =":
                return True
        at = data.find(name, behind, end)
    return False


def _is_operand(data: bytes, at: int, behind: int, products: bool) -> bool:
    if data.endswith(b"self.", 0, at):
        at, products = at - 5, True
        if data.endswith(b" / ", 0, at):
            return True
    before = data[at - 1 : at]
    if before == b"(":
        if _is_word(data, behind):
            return False
        if data.endswith(_FUNCTIONS, at - 30, at - 1) or _runs_module(data, at - 1):
            return True
        if data.endswith(_WHOLE, at - 30, at - 1) and data[behind : behind + 1] == b")":
            return True
    elif before != b" " and not (before == b"-" or before == b"\t"):
        return False
    elif data[at - 2 : at - 1] == b"@" and not _is_word(data, behind):
        return True
    elif data[at - 2 : at - 1] == b"," and data.find(b"einsum(", at - _NEAR, at) >= 0:
        return not _is_word(data, behind)
    elif data[at - 2 : at - 1] == b"*" and not _is_word(data, behind):
        if products or data.find(b"self.", at - 30, at) >= 0:
            return True
    if data[behind : behind + 1] == b"[":
        behind = data.find(b"]", behind) + 1
    if data[behind : behind + 1] == b".":
        if data.startswith(_METHODS, behind) or _OVER_ALL.match(data, behind):
            return True
    return data.startswith(_OPERATIONS, behind) or (products and data.startswith(b" * ", behind))


_CALLEE = re.compile(rb"(self\.)?(\w+)(?:\[\w+\])?$")
_HELD = re.compile(rb"self\.\w+(?:: [\w.]+)? = (?:[\w.]*\.)?(\w+)\(")
_LOOPED = re.compile(rb"for (?:\w+, )?\w+ in (?:enumerate\()?self\.(\w+)\)?:")
_OF_TORCH = frozenset(b"Sequential ModuleList Linear Conv1d Conv2d Conv3d LayerNorm".split())


def _runs_module(data: bytes, bracket: int) -> bool:
    """Whether a call is one of a module with weights, or of a class of the file."""
    match = _CALLEE.search(data, max(0, bracket - 60), bracket)
    if match is None:
        return False
    if match[1]:
        return _holds_module(data, match[2])
    return any(
        looped is not None and _holds_module(data, looped[1])
        for at in undeclared(data, b" %s in " % match[2])
        for looped in [_LOOPED.match(data, data.rfind(b"for ", 0, at + 1))]
    )


def _holds_module(data: bytes, attribute: bytes) -> bool:
    """Whether an attribute is set to such a module."""
    held = (_HELD.match(data, at) for at in undeclared(data, b"self." + attribute))
    return any(m and (m[1] in _OF_TORCH or b"\nclass " + m[1] in data) for m in held)


def _is_word(data: bytes, at: int) -> bool:
    return data[at : at + 1].isalnum() or data[at : at + 1] == b"_"


def arguments(data: bytes, at: int, name: bytes) -> Iterator[tuple[int, bytes]]:
    """(offset, name) in the calls of the function that writes into its parameter ``name``.

    Those in methods that are no part of training are left out.
    """
    begin = data.rfind(b"def ", 0, at)
    if begin < 0 or not _is_parameter(data, at, name):
        return
    function = _NAME.match(data, begin + 4)
    if function is None or function[1] == b"forward" or b"init" in function[1]:
        return
    for call in undeclared(data, function[1] + b"("):
        if data[call - 4 : call] != b"def " and may_be_trained(data, call):
            behind = call + len(function[1])
            end = data.find(b")", behind)
            for argument in re.findall(rb"[A-Za-z]\w*", data[behind:end]):
                if not _PLAIN.match(argument):
                    yield call, argument
