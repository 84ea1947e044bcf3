"""Modules in Python lists and dicts: registered where they run and nothing else has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import becomes, findings, fix, rules, stays

RUN = """\
for layer in self.layers:
    x = layer(x)
return x"""
RUN_DICT = "return self.layers[name](x)"


def net(init: str, run: str = RUN, *, head: str = "from torch import nn\n", more: str = "") -> str:
    def indented(body: str) -> str:
        return "".join(f"        {line}\n" for line in body.splitlines())

    return (
        f"{head}\n\nclass Net(nn.Module):\n    def __init__(self, d, n):\n"
        f"        super().__init__()\n{indented(init)}\n    def forward(self, x, name=None):\n"
        f"{indented(run)}{more}"
    )


@pytest.mark.parametrize(
    ("init", "fixed"),
    [
        (
            "self.layers = [nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)]",
            "self.layers = nn.ModuleList([nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)])",
        ),
        (
            "self.layers = (nn.Linear(d, d), nn.Linear(d, d))",
            "self.layers = nn.ModuleList((nn.Linear(d, d), nn.Linear(d, d)))",
        ),
        (
            "self.layers = [  # the stack\n    nn.Linear(d, d)\n    for _ in range(n)\n]",
            "self.layers = nn.ModuleList([  # the stack\n    nn.Linear(d, d)\n"
            "    for _ in range(n)\n])",
        ),
        (
            "self.layers = [nn.Linear(1, d)] + [nn.Linear(d, d) for _ in range(n)]",
            "self.layers = nn.ModuleList([nn.Linear(1, d)] + [nn.Linear(d, d) for _ in range(n)])",
        ),
        (
            "self.layers = []\nfor _ in range(n):\n    self.layers.append(nn.Linear(d, d))",
            "self.layers = nn.ModuleList()\nfor _ in range(n):\n"
            "    self.layers.append(nn.Linear(d, d))",
        ),
        (
            "self.layers: list[nn.Module] = [nn.Linear(d, d) for _ in range(n)]",
            "self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(n)])",
        ),
        (
            "self.layers: list[nn.Module] = []\nself.layers.append(nn.Linear(d, d))",
            "self.layers = nn.ModuleList()\nself.layers.append(nn.Linear(d, d))",
        ),
        (
            "self.layers = list()\nself.layers += [nn.Linear(d, d)]",
            "self.layers = nn.ModuleList()\nself.layers += [nn.Linear(d, d)]",
        ),
        (
            "self.layers = []\nfor _ in range(n):\n    layer = nn.Linear(d, d)\n"
            "    nn.init.zeros_(layer.bias)\n    self.layers.append(layer)",
            "self.layers = nn.ModuleList()\nfor _ in range(n):\n    layer = nn.Linear(d, d)\n"
            "    nn.init.zeros_(layer.bias)\n    self.layers.append(layer)",
        ),
        (
            "layers = []\nfor _ in range(n):\n    layers.append(nn.Linear(d, d))\n"
            "self.layers = layers",
            "layers = []\nfor _ in range(n):\n    layers.append(nn.Linear(d, d))\n"
            "self.layers = nn.ModuleList(layers)",
        ),
        (
            "self.layers = [nn.Linear(d, d).to('cuda'), nn.utils.weight_norm(nn.Linear(d, d))]",
            "self.layers = nn.ModuleList([nn.Linear(d, d).to('cuda'), "
            "nn.utils.weight_norm(nn.Linear(d, d))])",
        ),
        (
            "self.layers = list(nn.Linear(d, d) for _ in range(n))",
            "self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(n))",
        ),
        (
            "self.layers = tuple([nn.Linear(d, d) for _ in range(n)])",
            "self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(n)])",
        ),
        (
            "self.layers: tuple[nn.Linear, ...] = tuple(nn.Linear(d, d) for _ in range(n))",
            "self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(n))",
        ),
        (
            "self.layers = list(map(lambda i: nn.Linear(d, d), range(n)))",
            "self.layers = nn.ModuleList(map(lambda i: nn.Linear(d, d), range(n)))",
        ),
    ],
)
def test_lists(init: str, fixed: str) -> None:
    becomes(net(init), net(fixed))


def test_keys_with_braces() -> None:
    run = "for layer in self.layers.values():\n    x = layer(x)\nreturn x"
    made = '{f"b{i}": nn.Linear(d, d) for i in range(n)}'
    becomes(
        net(f"self.layers = {made}", run),
        net(f"self.layers = nn.ModuleDict({made})", run),
    )


MAKER = """\
from torch import nn

stack = nn.Linear(4, 4)


def mlp(d):
    if d < 8:
        return nn.Linear(d, d)
    return nn.Sequential(nn.Linear(d, d), nn.GELU())


def activation(d):
    return nn.GELU()


def shared(d):
    return stack
"""


def test_modules_that_a_function_of_the_file_makes() -> None:
    becomes(
        net("self.layers = [mlp(d) for _ in range(n)]", head=MAKER),
        net("self.layers = nn.ModuleList([mlp(d) for _ in range(n)])", head=MAKER),
    )
    stays(net("self.layers = [activation(d) for _ in range(n)]", head=MAKER))
    stays(net("self.layers = [shared(d) for _ in range(n)]", head=MAKER))
    cached = MAKER.replace("\ndef mlp", "\n@functools.cache\ndef mlp")
    stays(net("self.layers = [mlp(d) for _ in range(n)]", head=f"import functools\n{cached}"))


def test_lists_in_lists() -> None:
    run = "for conv, norm in self.layers:\n    x = norm(conv(x))\nreturn x"
    becomes(
        net("self.layers = [[nn.Linear(d, d), nn.LayerNorm(d)] for _ in range(n)]", run),
        net(
            "self.layers = nn.ModuleList("
            "[nn.ModuleList([nn.Linear(d, d), nn.LayerNorm(d)]) for _ in range(n)])",
            run,
        ),
    )
    becomes(
        net("self.layers = []\nself.layers.append((nn.Linear(d, d), nn.LayerNorm(d)))", run),
        net(
            "self.layers = nn.ModuleList()\n"
            "self.layers.append(nn.ModuleList((nn.Linear(d, d), nn.LayerNorm(d))))",
            run,
        ),
    )


@pytest.mark.parametrize(
    ("init", "fixed"),
    [
        (
            'self.layers = {"a": nn.Linear(d, d), "b": nn.Linear(d, d)}',
            'self.layers = nn.ModuleDict({"a": nn.Linear(d, d), "b": nn.Linear(d, d)})',
        ),
        (
            'self.layers = {}\nfor i in range(n):\n    self.layers[f"l{i}"] = nn.Linear(d, d)',
            "self.layers = nn.ModuleDict()\nfor i in range(n):\n"
            '    self.layers[f"l{i}"] = nn.Linear(d, d)',
        ),
        (
            "self.layers = {str(i): nn.Linear(d, d) for i in range(n)}",
            "self.layers = nn.ModuleDict({str(i): nn.Linear(d, d) for i in range(n)})",
        ),
        (
            "self.layers = dict(a=nn.Linear(d, d), b=nn.Linear(d, d))",
            "self.layers = nn.ModuleDict(dict(a=nn.Linear(d, d), b=nn.Linear(d, d)))",
        ),
        (
            "self.layers = dict((str(i), nn.Linear(d, d)) for i in range(n))",
            "self.layers = nn.ModuleDict(dict((str(i), nn.Linear(d, d)) for i in range(n)))",
        ),
        (
            'self.layers = OrderedDict([("a", nn.Linear(d, d)), ("b", nn.Linear(d, d))])',
            "self.layers = nn.ModuleDict("
            'OrderedDict([("a", nn.Linear(d, d)), ("b", nn.Linear(d, d))]))',
        ),
        (
            "self.layers = dict(a=[nn.Linear(d, d)], b=[nn.Linear(d, d)])",
            "self.layers = nn.ModuleDict("
            "dict(a=nn.ModuleList([nn.Linear(d, d)]), b=nn.ModuleList([nn.Linear(d, d)])))",
        ),
    ],
)
def test_dicts(init: str, fixed: str) -> None:
    becomes(net(init, RUN_DICT), net(fixed, RUN_DICT))


def test_a_name_of_the_container_as_a_keyword() -> None:
    (finding,) = findings(net("self.layers = dict(train=nn.Linear(d, d))", RUN_DICT))
    assert finding.rule == "TRN501" and not finding.fixes


def test_keys_that_may_be_no_strings_are_for_a_person_to_look_at() -> None:
    before = net("self.layers = {k: nn.Linear(d, d) for k in n}", RUN_DICT)
    assert fix(before) == before
    assert "nn.ModuleDict({k: nn.Linear(d, d) for k in n})" in fix(before, unsafe=True)


@pytest.mark.parametrize(
    "init",
    [
        "self.layers = {i: nn.Linear(d, d) for i in range(n)}",
        "self.layers = {1: nn.Linear(d, d)}",
        'self.layers = {"a.b": nn.Linear(d, d)}',
        'self.layers = {"type": nn.Linear(d, d)}',
    ],
)
def test_keys_that_a_module_dict_does_not_take(init: str) -> None:
    (finding,) = findings(net(init, RUN_DICT))
    assert finding.rule == "TRN501" and not finding.fixes


@pytest.mark.parametrize(
    ("init", "run"),
    [
        ("self.layers = [nn.Linear(d, d), torch.relu, nn.Linear(d, d)]", RUN),
        (
            'self.layers = [(nn.Linear(d, d), "relu") for _ in range(n)]',
            RUN.replace("layer(", "layer[0]("),
        ),
        ("self.layers = [nn.Linear(d, d) for _ in range(n)]", f"self.layers.sort()\n{RUN}"),
        (
            "self.layers = [nn.Linear(d, d) for _ in range(n)]",
            f"assert isinstance(self.layers, list)\n{RUN}",
        ),
        ('self.layers = {"a": nn.Linear(d, d)}', "x = self.layers.get(name)\n" + RUN_DICT),
    ],
)
def test_what_a_module_list_cannot_do_is_reported(init: str, run: str) -> None:
    (finding,) = findings(net(init, run))
    assert finding.rule == "TRN501" and not finding.fixes


def test_a_part_that_something_else_is_added_to_stays_a_list() -> None:
    run = "for layer in self.layers[::-1] + [torch.tanh]:\n    x = layer(x)\nreturn x"
    text = net(LIST, run, head="import torch\nfrom torch import nn\n")
    (finding,) = findings(text)
    assert finding.rule == "TRN501" and not finding.fixes


LOADS = "\n\ndef load(net, path):\n    net.load_state_dict({})\n    return net\n"
HEAD = "import torch\nfrom torch import nn\n"


def test_checkpoints_of_before_do_not_load_into_the_fixed_class() -> None:
    text = net(LIST, head=HEAD, more=LOADS.format("torch.load(path)"))
    (finding,) = findings(text)
    made = finding.fix("flag")
    assert made is not None and made.safety == "unsafe" and "saved before" in made.look_at
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    saved = scope["Net"](3, 2).state_dict()
    exec(compile(fix(text, unsafe=True), "m.py", "exec"), scope)
    with pytest.raises(RuntimeError, match="Missing key"):
        scope["Net"](3, 2).load_state_dict(saved)


@pytest.mark.parametrize(
    "more",
    [
        LOADS.format("torch.load(path), strict=False"),
        LOADS.format("other.state_dict()"),
        LOADS.format("torch.load(path)").replace("net.load", "optimizer.load"),
        "\n    def start(self, path):\n        self.norm.load_state_dict(torch.load(path))\n",
    ],
)
def test_what_is_loaded_otherwise_is_no_checkpoint_of_the_class(more: str) -> None:
    (finding,) = findings(net(LIST, head=HEAD, more=more))
    made = finding.fix("flag")
    assert made is not None and made.safety == "safe"


def test_before_the_module_is_set_up_there_is_no_fix() -> None:
    text = net("self.layers = [nn.Linear(d, d) for _ in range(n)]")
    call = "        super().__init__()\n"
    (finding,) = findings(
        text.replace(call, "").replace("\n    def forward", f"{call}\n    def forward")
    )
    assert not finding.fixes


def test_lists_of_parameters() -> None:
    run = "return x @ self.layers[0]"
    head = "import torch\nimport torch.nn as nn\n"
    becomes(
        net("self.layers = [nn.Parameter(torch.zeros(d)) for _ in range(n)]", run, head=head),
        net(
            "self.layers = nn.ParameterList([nn.Parameter(torch.zeros(d)) for _ in range(n)])",
            run,
            head=head,
        ),
    )


PARAMETERS = "self.layers = [nn.Parameter(torch.ones(d)) for _ in range(n)]"
TORCH = "import torch\nfrom torch import nn\n"


@pytest.mark.parametrize(
    ("run", "fixable"),
    [
        ("return x * sum(self.layers)", True),
        ("return sum(w * x for w in self.layers)", True),
        ("return x * torch.stack(list(self.layers)).sum(0)", True),
        ("return x * torch.stack(self.layers).sum(0)", False),  # which takes no ParameterList
        ("return torch.einsum('bd,d,d->b', x, *self.layers)", True),
    ],
)
def test_parameters_that_are_read_all_at_once(run: str, fixable: bool) -> None:
    text = net(PARAMETERS, run, head=TORCH)
    (finding,) = findings(text)
    assert finding.rule == "TRN501" and bool(finding.fixes) is fixable
    for each, count in ((text, 0), (fix(text), 2 if fixable else 0)):
        scope: dict[str, Any] = {}
        exec(compile(each, "m.py", "exec"), scope)
        module = scope["Net"](4, 2)
        assert len(list(module.parameters())) == count
        module(torch.ones(3, 4)).sum().backward()
        assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize(
    "init",
    [
        f"{PARAMETERS}\nself.optimizer = torch.optim.SGD(self.layers, lr=0.1)",
        f"{PARAMETERS}\nself.kept = nn.ParameterList(self.layers)",
        f"{PARAMETERS}\nregister(self, self.layers)",
        "self.layers = list(self.children())",
        "self.layers = tuple(make(d) for _ in range(n))",
        "self.layers = dict(zip(n, make(d)))",
        "self.layers = dict(a=nn.ReLU(), b=nn.GELU())",
        "self.layers = list(map(nn.ReLU, range(n)))",
    ],
)
def test_lists_that_somebody_sees_to(init: str) -> None:
    stays(net(init, "return x * sum(self.layers)", head=TORCH))


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("import torch\nfrom torch.nn import Linear, Module\n", "torch.nn.ModuleList("),
        ("from torch.nn import Linear, Module\n", "nn.ModuleList("),
        ("import torch.nn as tnn\nfrom torch.nn import Linear, Module\n", "tnn.ModuleList("),
    ],
)
def test_the_name_that_the_file_has_for_torch_nn(head: str, name: str) -> None:
    before = net("self.layers = [Linear(d, d) for _ in range(n)]", head=head)
    fixed = fix(before.replace("nn.Module", "Module"))
    assert f"self.layers = {name}[" in fixed
    assert ("from torch import nn\n" in fixed) is (name == "nn.ModuleList(")


def test_own_layers_count_if_they_have_weights() -> None:
    block = (
        "\n\nclass Block(nn.Module):\n    def __init__(self, d):\n        super().__init__()\n"
        "        self.proj = nn.Linear(d, d)\n"
    )
    init = "self.layers = [Block(d) for _ in range(n)]"
    assert rules(net(init, more=block)) == ["TRN501"]
    stays(net(init, more=block.replace("nn.Linear(d, d)", "nn.ReLU()")))
    stays(net(init, more=block.replace("nn.Module", "Plain")))


LIST = "self.layers = [nn.Linear(d, d) for _ in range(n)]"


@pytest.mark.parametrize(
    "run",
    [
        "return self.layers[0](x)",
        "layer = self.layers[0]\nreturn layer(x)",
        "for i, layer in enumerate(self.layers):\n    x = x + layer(x)\nreturn x",
        "for layer, y in zip(self.layers, x):\n    x = layer(y)\nreturn x",
        "for layer in self.layers[1:]:\n    x = checkpoint(layer, x, use_reentrant=False)\nreturn x",
        "return sum(layer(x) for layer in self.layers)",
        "for layer in reversed(self.layers):\n    x = layer.forward(x)\nreturn x",
        "*rest, last = self.layers\nfor layer in rest:\n    x = layer(x)\nreturn last(x)",
        "first, *rest = self.layers\nx = first(x)\nfor layer in rest:\n    x = layer(x)\nreturn x",
        "a, b = self.layers\nreturn b(a(x))",
        "for layer in sorted(self.layers, key=id):\n    x = layer(x)\nreturn x",
        "layers = self.layers\nfor layer in layers:\n    x = layer(x)\nreturn x",
        "order = self.layers[::-1]\nfor layer in order[1:]:\n    x = layer(x)\nreturn x",
        "order = list(self.layers)\nreturn order[0](x)",
        (
            "order = self.layers[:]\nrandom.Random(0).shuffle(order)\nfor layer in order:\n"
            "    x = layer(x)\nreturn x"
        ),
    ],
)
def test_ways_to_run_them(run: str) -> None:
    head = "import random\n\nfrom torch import nn\nfrom torch.utils.checkpoint import checkpoint\n"
    text = net(LIST, run, head=head)
    (finding,) = findings(text)
    assert finding.rule == "TRN501"
    assert bool(finding.fixes) is ("shuffle" not in run)
    scope: dict[str, Any] = {}
    exec(compile(fix(text), "m.py", "exec"), scope)
    made = scope["Net"](3, 2)
    made(torch.ones(2, 3)).sum().backward()
    assert any(p.grad is not None for p in made.parameters()) is bool(finding.fixes)


@pytest.mark.parametrize(
    ("init", "run"),
    [
        ("self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(n)])", RUN),
        (f"{LIST}\nself.layers = nn.ModuleList(self.layers)", RUN),
        (f"{LIST}\nself.net = nn.Sequential(*self.layers)", RUN),
        (
            f"{LIST}\nfor i, layer in enumerate(self.layers):\n    self.add_module(str(i), layer)",
            RUN,
        ),
        (
            f'{LIST}\nfor i, layer in enumerate(self.layers):\n    setattr(self, f"l{{i}}", layer)',
            RUN,
        ),
        (
            "layers = [nn.Linear(d, d)]\nself.net = nn.Sequential(*layers)\nself.layers = layers",
            RUN,
        ),
        ("self.a = nn.Linear(d, d)\nself.b = nn.Linear(d, d)\nself.layers = [self.a, self.b]", RUN),
        ("a = nn.Linear(d, d)\nself.a = a\nself.layers = [a, a]", RUN),
        ("self.layers = [nn.Linear(d, d)]", "return self.layers[0](x)"),
        (f"{LIST}  # not registered: kept out of the state dict", RUN),
        (f"# hidden from the optimizer\n{LIST}", RUN),
        ("self.layers = [nn.Linear(d, d).requires_grad_(False) for _ in range(n)]", RUN),
        ("self.layers = [nn.Linear(d, d).eval() for _ in range(n)]", RUN),
        (f"{LIST}\nfor layer in self.layers:\n    layer.requires_grad_(False)", RUN),
        (f"{LIST}\nself.extra = [p for layer in self.layers for p in layer.parameters()]", RUN),
        ("self.layers = [nn.ReLU() for _ in range(n)]", RUN),
        ("self.layers = [nn.Identity(), nn.Dropout(0.1)]", RUN),
        ("self.layers = [Unknown(d) for _ in range(n)]", RUN),
        ("self.layers = [copy(self.norm) for _ in range(n)]", RUN),
        (LIST, "return x"),
        ("self.layers = list([nn.Linear(d, d)])", "return self.layers[0](x)"),
        (LIST, "with torch.no_grad():\n    x = self.layers[0](x)\nreturn x"),
        (f"{LIST}\nadopt(self, self.layers)", RUN),
        (f"{LIST}\nself.net = nn.Sequential(*self.layers[:-1])", RUN),
        (f"{LIST}\nself.net = nn.ModuleList(list(self.layers))", RUN),
        (f"{LIST}\nself.net = nn.Sequential(*random.sample(self.layers, 2))", RUN),
        (f"{LIST}\nfirst, *rest = self.layers\nself.first = first\nself.net = rest", RUN),
        (f"{LIST}\nfirst, *rest = self.layers\nself.net = nn.Sequential(*rest)", RUN),
        (f"{LIST}\nlayers = self.layers\nself.net = nn.ModuleList(layers)", RUN),
        (f"{LIST}\nlayers = self.layers\nlayers.append(self.extra)", RUN),
        ("self.__dict__['layers'] = [nn.Linear(d, d) for _ in range(n)]", RUN),
    ],
)
def test_what_is_registered_hidden_or_has_no_weights(init: str, run: str) -> None:
    stays(net(init, run, head="import torch\nfrom torch import nn\n"))


def test_what_others_see_to() -> None:
    stays(
        net(LIST)
        + "\n\ndef train(net):\n"
        + "    return SGD([p for layer in net.layers for p in layer.parameters()])\n"
    )
    stays(net(LIST, more="\n    def parameters(self, recurse=True):\n        return iter(())\n"))
    stays(net(LIST).replace("(nn.Module)", ""))
    stays(net(LIST).replace("(nn.Module)", "(Trainer)"))


def test_modules_of_a_base_class_in_the_file_are_modules() -> None:
    text = net(LIST).replace("class Net(nn.Module)", "class Net(Base)")
    assert rules(text.replace("class Net", "class Base(nn.Module):\n    pass\n\n\nclass Net")) == [
        "TRN501"
    ]


def test_other_frameworks_register_what_a_list_holds() -> None:
    stays(net(LIST, head="import mlx.nn as nn\n"))
    stays(net(LIST, head="from tinygrad import nn\n"))


ADDED = "self.layers = {}\nfor k in KEYS:\n    self.layers[k] = nn.Linear(d, d)"


@pytest.mark.parametrize("key", ["keys", "pop", "items", "values", "update", "clear", "forward"])
@pytest.mark.parametrize(
    "init",
    [
        ADDED.replace("KEYS", "('a', 'KEY')"),
        ADDED.replace("KEYS", "sorted(['a', 'KEY'])"),
        ADDED.replace("for k in KEYS", "for i, k in enumerate(('KEY', 'b'))"),
        ADDED.replace("for k in KEYS", "for k, n in (('a', 1), ('KEY', 2))"),
        ADDED.replace("for k in KEYS", "for k, n in {'a': 1, 'KEY': 2}.items()"),
        "self.layers = {k: nn.Linear(d, d) for k in ('a', 'KEY')}",
        "names = ('a', 'KEY')\n" + ADDED.replace("KEYS", "names"),
        "self.layers = {}\nself.layers['KEY'] = nn.Linear(d, d)",
    ],
)
def test_a_key_that_a_module_dict_cannot_have(init: str, key: str) -> None:
    (finding,) = findings(net(init.replace("KEY", key), RUN_DICT))
    assert finding.rule == "TRN501"
    assert not finding.fixes


@pytest.mark.parametrize("key", ["a.b", "training", "zero_grad", ""])
def test_a_key_with_a_dot_or_the_name_of_a_method(key: str) -> None:
    (finding,) = findings(net(ADDED.replace("KEYS", f"('a', '{key}')"), RUN_DICT))
    assert not finding.fixes


def test_keys_written_out_leave_no_question() -> None:
    fixed = fix(net(ADDED.replace("KEYS", "('a', 'b')"), RUN_DICT))
    assert "self.layers = nn.ModuleDict()" in fixed


def test_a_module_dict_refuses_the_names_that_are_reserved() -> None:
    from torch import nn

    from trainify.passes.unregistered.keys import RESERVED

    public = {n for n in dir(nn.ModuleDict()) if not n.startswith("_")}
    assert public - RESERVED <= {"smart_apply"}  # which transformers adds once it has made a model


HELD_OTHERWISE = {
    "added to itself": (
        "self.layers = []\nfor _ in range(n):\n    self.layers = self.layers + [nn.Linear(d, d)]",
        RUN,
    ),
    "run by another attribute": (
        "self.layers = [nn.Linear(d, d), nn.Linear(d, d)]\nself.order = self.layers[::-1]",
        RUN.replace("self.layers", "self.order"),
    ),
    "a dict with a default": (
        'self.d = nn.Linear(d, d)\nself.layers = {"a": nn.Linear(d, d), "b": nn.Linear(d, d)}',
        "return self.layers.get('a', self.d)(x)",
    ),
    "made where it is missing": (
        "self.d = d\nself.layers = {}",
        "return self.layers.setdefault('a', nn.Linear(self.d, self.d))(x)",
    ),
}


@pytest.mark.parametrize("name", HELD_OTHERWISE)
def test_other_ways_to_hold_and_run_modules(name: str) -> None:
    init, run = HELD_OTHERWISE[name]
    text = net(init, run)
    assert rules(text) == ["TRN501"]
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    model = scope["Net"](4, 2)
    model(torch.ones(2, 4)).sum().backward()
    assert all("layers" not in parameter for parameter, _ in model.named_parameters())
    assert fix(text, unsafe=True) == text  # a ModuleList or ModuleDict cannot be used like this


@pytest.mark.parametrize(
    ("init", "run"),
    [
        (
            "self.layers = [nn.Linear(d, d), nn.Linear(d, d)]\nself.order = self.layers[::-1]",
            "return nn.Sequential(*self.order)(x)",
        ),
        (
            "self.layers = [nn.Linear(d, d), nn.Linear(d, d)]\n"
            "self.order = self.layers[::-1]\nself.order = nn.ModuleList(self.layers)",
            RUN.replace("self.layers", "self.order"),
        ),
        ("self.layers = []\nself.layers = self.layers + [d, n]", "return x * self.layers[0]"),
        ("self.d, self.layers = d, {}", "return self.layers.setdefault('a', self.d) * x"),
    ],
)
def test_what_others_may_register_stays(init: str, run: str) -> None:
    stays(net(init, run))
