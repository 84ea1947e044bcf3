"""The differentiable form of a statement with fused calls in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...catalog import RETURNED
from ...catalog.arguments import ASKS
from ...facts import ModuleFacts
from ...facts.guards import is_operator
from ...facts.names import last_name, passed
from ...facts.order import evaluated_before, leaves_traces, order_matters, takes_something
from ...facts.parsed import parsed
from ...facts.views import is_view_method, view_of
from ...facts.walk import walk
from ...facts.writes import is_element
from .rounded import ACTIVATION
from .site import Site
from .unread import unread_places

if TYPE_CHECKING:
    from ...rewrite.attach import Applied
    from ...rewrite.branch import Change, Exchange
    from ...rewrite.functionalize import Place, Write
    from ...rewrite.template import Rendered, Template
    from .writers import Writer

SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)
_ANY = ast.Name("x")
_COUNTS = re.compile(r"^[ijkn]$|(^|_)(layer|layer_(idx|id|num|number|index)|idx|id)_?$")
"""Names of numbers, by which a layer finds its own tensor in a list."""
_SAVES_NOTHING = re.compile(r"(llama31_)?ro(tat|tary|pe_)|fused_add_")
_SAVES_NOTHING_ATTACHED = re.compile(r"rotary_embedding|rotate_query_key\b|fused_add_")
"""Those whose backward needs no inputs; it computes the others anew."""


class NoRewrite(Exception):
    """A statement cannot be written anew; the text says why."""


class StatementRewriter:
    """The differentiable form of one statement with the fused calls in it."""

    def __init__(
        self,
        module: ModuleFacts,
        statement: ast.stmt,
        sites: Sequence[Site],
        writer: Writer,
    ) -> None:
        self.module = module
        self.statement = statement
        self.sites = {site.call: site for site in sites}
        self.writer = writer
        self.flow = module.flow(module.function(statement) or module.tree)
        self.before: list[str] = []
        self.after: list[str] = []
        self.dropped: list[ast.stmt] = []
        self.look_at: list[str] = []
        self.copies: set[str] = set()
        self.helpers: list[str] = []
        self.exchanged: list[Exchange] = []
        self.taken = self.flow.identifiers

    def change(self) -> Change:
        """Raises :class:`NoRewrite`, or what the writer and functionalization raise."""
        from ...rewrite.branch import Change

        function = self.module.function(self.statement)
        if function is not None and is_operator(self.module, function):
            name = function.name
            raise NoRewrite(f"`{name}` is an operator, in which autograd records nothing")
        lines = self._lines()
        wants = self._wants(self.sites.values())
        return Change(
            statements=[self.statement],
            lines=lines,
            dropped=self.dropped,
            wants=None if wants is None else list(wants),
            optional=frozenset(t for t, may_be_none in (wants or {}).items() if may_be_none),
            overwritten=frozenset(self._overwritten()),
            helpers=list(dict.fromkeys(self.helpers)),
            look_at=self.look_at,
            copies=frozenset(self.copies),
            title=", ".join(dict.fromkeys(site.op.name for site in self.sites.values())),
            expressions=self.exchanged,
        )

    # -- text -----------------------------------------------------------------------------------

    def _lines(self) -> list[str]:
        statement = self.statement
        for site in self.sites.values():
            if site.refused:
                raise NoRewrite(site.refused)
            if ACTIVATION in site.bound and "attach" in self.writer.strategies:
                raise NoRewrite("the kernel gets codes, not what a gradient is wanted of")
            unsupported = site.unsupported()
            if unsupported is not None:
                asks = ASKS.get(unsupported, "asks for more than its equivalent computes")
                raise NoRewrite(f"`{unsupported}` is passed, which {asks}")
        if isinstance(statement, ast.Expr) and statement.value in self.sites:
            self._effect(self.sites[statement.value], None)
            return [*self.before, *self.after]
        if isinstance(statement, ast.Assign) and statement.value in self.sites:
            site = self.sites[statement.value]
            if len(statement.targets) == 1 and self._effect(site, statement.targets[0]):
                return [*self.before, *self.after]
        if not isinstance(statement, SIMPLE) or any(s.deferred for s in self.sites.values()):
            self._expressions()
            return []
        from ...rewrite.expressions import one_line

        text = one_line(self._splice(statement))
        return [*self.before, text, *self.after]

    def _expressions(self) -> None:
        """Calls in the head of a compound statement, or run later: exchanged on the spot."""
        from ...rewrite.branch import Exchange

        for call in self._outermost(self.statement):
            site = self.sites[call]
            inside = [each for each in self.sites.values() if self._holds(call, each)]
            if any(each.deferred and each.writes() for each in inside):
                raise NoRewrite("it writes into a tensor when its statement is over")
            text = self._value(site)
            if self.before or self.dropped:
                deferred = any(each.deferred for each in self.sites.values())
                raise NoRewrite(
                    "it runs later, where no statement can come before it"
                    if deferred
                    else "it stands in the head of a compound statement"
                )
            wants = self._wants(inside, on_the_spot=True)
            optional = frozenset(t for t, may_be_none in (wants or {}).items() if may_be_none)
            names = None if wants is None else list(wants)
            self.exchanged.append(Exchange(call, text, names, optional))

    def _holds(self, call: ast.Call, site: Site) -> bool:
        return call is site.call or call in self.module.ancestors(site.call)

    def _splice(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node with the fused calls in it exchanged, on one line where it was not."""
        start = self.module.start(node)
        text = self.module.source(node)
        outer = sorted(self._outermost(node), key=self.module.start)
        values = [(call, self._value(self.sites[call])) for call in outer]
        for call, value in reversed(values):
            exchanged, value = self._element(call, value)
            a, b = self.module.start(exchanged) - start, self.module.end(exchanged) - start
            text = text[:a] + value + text[b:]
        return text

    def _element(self, call: ast.Call, value: str) -> tuple[ast.expr, str]:
        """``f(x)[0]``, where f gives a tuple that is written out, becomes its element."""
        parent = self.module.parent(call)
        if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
            tree = ast.parse(value, mode="eval").body
            if isinstance(tree, ast.Tuple) and isinstance(parent.slice.value, int):
                return parent, ast.unparse(tree.elts[parent.slice.value])
        return call, value

    def _outermost(self, node: ast.AST) -> Iterator[ast.Call]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and child in self.sites:
                yield child
            else:
                yield from self._outermost(child)

    # -- arguments ------------------------------------------------------------------------------

    def _argument(self, site: Site, name: str) -> str | None:
        """The text of an argument in the new call; tensors lose ``.data`` and ``.detach()``."""
        from ...rewrite.template import strip_detach

        node = site.bound[name]
        if node is None:
            return None
        captured = site.captured(name)
        if captured is not None:
            return captured
        tensor = name in site.differentiable
        text = self._splice_expression((tensor and site.cut_before(name, node)) or node)
        return strip_detach(text) if tensor else text

    def _splice_expression(self, node: ast.expr) -> str:
        if isinstance(node, ast.Call) and node in self.sites:
            return self._value(self.sites[node])
        return self._splice(node)

    # -- calls ----------------------------------------------------------------------------------

    def _template(self, site: Site) -> Template | Applied:
        self._refuse_another_order(site)
        self._remind_of_dropped(site)
        arguments = {name: self._argument(site, name) for name in site.bound}
        overwritten = self._copied_into(site)
        for name, text in arguments.items():
            if text is not None and name in site.differentiable and name in site.reads:
                if self._base(text) in overwritten:
                    arguments[name] = f"{text}.clone()"
        self._remind(site.op.look_at)
        for name in site.lost:
            self._remind(site.cut_elsewhere(name))
        if site.cached:
            names = " and ".join(f"`{name}`" for name in site.cached)
            self._remind(
                f"no gradient reaches {names} through the cache; a prefill, in which all of a "
                "sequence is fresh, can attend to them instead"
            )
        return self.writer.template(site.call, arguments)

    def _refuse_another_order(self, site: Site) -> None:
        """What arguments do, they do in the order of the call; or what is done is another thing."""
        given = passed(site.call)
        nodes = {a.name: site.bound[a.name] for a in site.op.signature.arguments}
        nodes = {name: node for name, node in nodes.items() if node in given}
        if "attach" in self.writer.strategies:
            order = [name for name in nodes if name in site.reads]
        else:
            reads = [n for n in walk(ast.parse(site.value)) if isinstance(n, ast.Name)]
            reads.sort(key=lambda name: name.col_offset)
            order = list(dict.fromkeys(name.id for name in reads if name.id in nodes))
        places = [(given.index(node), node) for name in order if (node := nodes[name])]
        for i, (place, node) in enumerate(places):
            left = [other for before, other in places[i + 1 :] if before < place]
            if left and order_matters(self.module, left, [node], ()):
                raise NoRewrite("its equivalent takes the arguments in another order")

    def _remind_of_dropped(self, site: Site) -> None:
        """Say of an argument that the new form does not take that making it may do more."""
        for argument in site.op.signature.arguments:
            node = site.bound[argument.name]
            if argument.name in site.reads or argument.written:
                continue
            if node is None or node not in passed(site.call):
                continue
            alone = argument.is_tensor and order_matters(self.module, [node], [node], ())
            if alone or leaves_traces(self.module, node):
                text = self.module.source(node)
                self._remind(f"`{text}`, which the new form does not take, is not run any more")

    def _copied_into(self, site: Site) -> set[str]:
        """What results are copied into though autograd has saved what is computed from it.

        Rotations and sums save nothing of that.
        """
        attached = "attach" in self.writer.strategies
        if (_SAVES_NOTHING_ATTACHED if attached else _SAVES_NOTHING).match(site.value):
            return set()
        places = [write.place for write in site.writes().values()]
        return {
            base
            for place in places
            if (place.kind == "copy" or _is_part(place.text)) and (base := self._base(place.text))
        }

    def _base(self, text: str) -> str | None:
        root = self._root(parsed(text))
        return None if root is None else self._storage(root)

    def _writes(self, site: Site) -> dict[str, Write]:
        writes = site.writes()
        for name, write in writes.items():
            if write.allocation is not None and write.allocation not in self.dropped:
                # The new form may read it too, its shape say.
                made = self.writer.makes(site.call, name) and name not in site.reads
                if made and not takes_something(write.allocation):
                    self.dropped.append(write.allocation)
            self._remind(write.look_at)
            if write.only_copies:
                self.copies.add(write.look_at)
            self._look_ahead(site)
        return writes

    def _remind(self, look_at: str) -> None:
        if look_at and look_at not in self.look_at:
            self.look_at.append(look_at)

    def _look_ahead(self, site: Site) -> None:
        """Autograd saves what the new form reads: a later write in place makes backward raise.

        An attached sum saves what it gives; the equivalent is seen by the rule for such writes.
        """
        attached = "attach" in self.writer.strategies
        saves_results = attached and site.value.startswith("fused_add_")
        written = set(site.op.signature.written)
        for argument in site.op.signature.arguments:
            node = site.bound[argument.name]
            if (argument in written and not saves_results) or not isinstance(node, ast.Name):
                continue
            later = self.flow.written_later(node.id, self.statement)
            if later is not None and argument.name in site.differentiable:
                self._remind(
                    f"`{later}` writes into `{node.id}`, which the new form saves for backward"
                )

    def _effect(self, site: Site, target: ast.expr | None) -> bool:
        """Write out a call whose result goes to names: its statement, or an assignment of it."""
        from ...rewrite.functionalize import Place

        writes = self._writes(site)
        template = self._template(site)
        outputs = site.outputs
        if target is not None:
            self._refuse_several(site)
        if target is None and outputs:
            places = [writes[o].place if o in writes else None for o in outputs]
            unread = unread_places(self.module, self.statement, places)
            self._take(template.render(places, self.taken, unread=unread))
        elif target is None:
            if len(writes) != 1:
                raise NoRewrite("its result is not used")
            (write,) = writes.values()
            self._take(template.render([write.place], self.taken))
        else:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if not all(isinstance(n, (ast.Name, ast.Attribute)) for n in names):
                return False
            texts = [self.module.source(n) for n in names]
            if RETURNED in outputs:
                if len(texts) != 1:
                    return False
                self._take(template.render(_places(outputs, writes, texts[0]), self.taken))
            elif outputs:
                if len(names) != len(outputs) or _handed_back(site) != tuple(outputs):
                    return False
                places = [
                    Place(t)
                    if o not in writes or writes[o].place.kind == "assign"
                    else writes[o].place
                    for t, o in zip(texts, outputs, strict=True)
                ]
                self._take(template.render(places, self.taken))
                for text, output in zip(texts, outputs, strict=True):
                    place = writes[output].place if output in writes else None
                    if place is None or place.text == text:
                        continue
                    if place.kind == "copy":
                        self.after.append(f"{text} = {place.text}")
                    elif self._still_read(place.text):
                        self.after.append(f"{place.text} = {text}")
            else:
                self._refuse_missing(site, texts)
                place = _of_a_caller(site, writes)
                if place is not None and len(texts) > 1:
                    raise NoRewrite("its output buffer is the caller's")
                clash = place is not None and place.text in texts
                given = [self._fresh_result()] if clash else texts
                self._take(template.render([Place(t) for t in given], self.taken))
                if place is not None:
                    self.after.append(f"{texts[0]} = {_copied(place, given[0])}")
                for write in writes.values() if place is None else ():
                    if write.place.text not in texts and self._still_read(write.place.text):
                        self.after.append(f"{write.place.text} = {texts[0]}")
        for write in writes.values():
            self.after += write.followers
        return True

    def _refuse_several(self, site: Site) -> None:
        """An equivalent names one new value, whatever else the op hands back beside it."""
        if RETURNED in site.outputs and len(site.op.signature.returns) > 1:
            raise NoRewrite("it returns more than its equivalent gives")

    def _refuse_missing(self, site: Site, texts: Sequence[str]) -> None:
        for i, text in enumerate(texts):
            if self.writer.leaves_out(site.call, i) and len(texts) > 1 and text != "_":
                if self._still_read(text):
                    raise NoRewrite(f"its equivalent does not give `{text}`, which is read later")

    def _still_read(self, text: str) -> bool:
        return not text.isidentifier() or self.flow.read_after(text, self.statement)

    def _take(self, rendered: Rendered) -> None:
        self.before += rendered.statements
        self.helpers += rendered.helpers
        stored = (n for line in rendered.statements for n in walk(ast.parse(line)))
        self.taken |= {
            n.id for n in stored if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }

    def _value(self, site: Site) -> str:
        """The expression that takes the place of a call whose value is used on the spot."""
        given = self._writes(site)
        writes = list(given.values())
        template = self._template(site)
        late = site.late
        if site.outputs:
            if late or site.behind:
                raise NoRewrite("it writes in place inside an expression")
            if RETURNED in site.outputs:
                self._refuse_several(site)
                result = self._fresh_result()
                named = dict(zip((a.name for a in site.op.signature.written), writes, strict=True))
                self._take(template.render(_places(site.outputs, named, result), self.taken))
                return result
            missing = [name for name in _handed_back(site) if name not in given]
            if missing:
                raise NoRewrite(f"its value is used, and no `{missing[0]}` is passed to hold that")
            places = [w.place for w in writes]
            self._take(template.render(places, self.taken))
            texts = [given[name].place.text for name in _handed_back(site)]
            return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
        if (late or site.behind) and not template.is_expression:
            raise NoRewrite("it stands where no statement can come before it")
        rendered = template.render((), self.taken, value=True)
        self._take(rendered)
        assert rendered.value is not None
        value = rendered.value
        place = _of_a_caller(site, given)
        if place is not None:
            ahead = evaluated_before(self.module, site.call)
            if late or site.behind or order_matters(self.module, ahead, [site.call], ()):
                raise NoRewrite("its output buffer is the caller's")
            result = self._fresh_result()
            self.before.append(f"{result} = {value}")
            value = _copied(place, result)
        for write in writes if place is None else ():
            if self._still_read(write.place.text):
                if late or site.behind:
                    raise NoRewrite("its output buffer is read later")
                self.before.append(f"{write.place.text} = {value}")
                value = write.place.text
        parent = self.module.parent(site.call)
        if isinstance(parent, (ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Compare)):
            tree = ast.parse(value, mode="eval").body
            if not isinstance(tree, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Tuple)):
                value = f"({value})"
        return value

    def _fresh_result(self) -> str:
        """A name for a result that has none."""
        from ...rewrite.template import fresh

        name = fresh("result", self.taken)
        self.taken |= {name}
        return name

    # -- condition ------------------------------------------------------------------------------

    def _wants(
        self, sites: Collection[Site], *, on_the_spot: bool = False
    ) -> dict[str, bool] | None:
        """Tensors of which one requires grad when a gradient is wanted; None if nameless.

        Each with whether it may be None.
        """
        wants: dict[str, tuple[str, bool]] = {}
        alone = on_the_spot and len(sites) == 1  # its names are those of the condition
        optional = {
            (site.call, a.name)
            for site in sites
            for a in site.op.signature.arguments
            if a.is_optional
        }
        for site in sites:
            for name in site.lost:
                node = site.bound[name]
                assert node is not None
                if self._is_result_of(node, sites):
                    continue
                text = self._root(parsed(site.shown(name)))
                if text is None or (site.late and not alone):
                    return None
                used = text != self.module.source(node)  # None has no .data and no .view()
                may_be_none = (site.call, name) in optional and not used
                may_be_none = may_be_none and not site.is_tensor(text)
                known, before = wants.get(self._storage(text), (text, True))
                wants[self._storage(text)] = known, before and may_be_none
        return dict(wants.values())

    def _is_result_of(self, node: ast.expr, sites: Collection[Site]) -> bool:
        """Whether an argument is what another of the calls gives, or a view of that.

        It requires a gradient where that call's own arguments do.
        """
        while not any(node is site.call for site in sites):
            if isinstance(node, (ast.Subscript, ast.Attribute)):
                node = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if not is_view_method(node.func.attr):
                    return False
                node = node.func.value
            else:
                return False
        return True

    def _overwritten(self) -> Iterator[str]:
        """Those that the kernel reads and overwrites."""
        for site in self.sites.values():
            for name in site.in_place:
                root = self._root(parsed(site.shown(name)))
                if root is not None:
                    yield root

    def _as_quoted(self, node: ast.expr) -> str:
        """The text of an expression, with the quotes that the author uses."""
        text = ast.unparse(node)
        double = text.replace("'", '"')
        return double if double in self.module.source(self.statement) else text

    def _root(self, node: ast.expr) -> str | None:
        """``x`` of ``x.view(-1, h)[0]``; ``self.weight`` as it is; None for other expressions."""
        while True:
            chain = node
            while isinstance(chain, ast.Attribute):
                chain = chain.value
            if isinstance(chain, ast.Name):
                break
            if isinstance(node, ast.Subscript):
                if isinstance(node.slice, ast.Constant) or _COUNTS.search(last_name(node.slice)):
                    return self._as_quoted(node)  # an element of a list or a dict, for all we know
                node = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if view_of(ast.Call(ast.Attribute(_ANY, node.func.attr), [], [])) is None:
                    return None
                node = node.func.value
            else:
                return None
        bare = isinstance(node, ast.Name)
        if bare and self.module.names.resolve_name(chain.id, self.statement):
            return None  # a module: torch.flatten(x)
        return ast.unparse(node)

    def _storage(self, text: str) -> str:
        """Pieces cut from one tensor require grad together: name them once."""
        if not text.isidentifier():
            return text
        definition = self.flow.only_definition(text, self.statement)
        if definition is not None and definition.value is not None:
            view = view_of(definition.value)
            if view is not None and view.kind == "part":
                return view.base
        return text


def _is_part(text: str) -> bool:
    """Whether ``x[:, :n]`` is assigned, and not an element of a list or a dict."""
    node = parsed(text)
    return isinstance(node, ast.Subscript) and not is_element(node)


def _of_a_caller(site: Site, writes: Mapping[str, Write]) -> Place | None:
    """The tensor of a caller's that the one result goes into; one that may be read is no such."""
    places = [
        write.place
        for name, write in writes.items()
        if write.place.kind == "copy" and not site.may_share(name)
    ]
    if places and len(writes) > 1:
        raise NoRewrite("its output buffers are the caller's")
    return places[0] if places else None


def _copied(place: Place, value: str) -> str:
    """The tensor of a caller's that holds a value now; the value itself where there is none."""
    copied = f"{place.text}.copy_({value})"
    return f"{value} if {place.text} is None else {copied}" if place.optional else copied


def _handed_back(site: Site) -> tuple[str, ...]:
    """Of what an op writes, what it returns: it may be less, and in an order of its own."""
    handed = (name for name in site.op.signature.handed_back if name is not None)
    return tuple(handed) or tuple(site.outputs)


def _places(
    outputs: Sequence[str], writes: Mapping[str, Write], returned: str
) -> list[Place | None]:
    """Where the outputs go of an op that both writes and returns."""
    from ...rewrite.functionalize import Place

    places: list[Place | None] = []
    for output in outputs:
        place = writes[output].place if output in writes else None
        if output == RETURNED:
            place = Place(returned)
        elif place is not None and place.text == returned:  # x = f(x): the name is taken
            if writes[output].followers:
                raise NoRewrite(f"another name holds the `{returned}` that it overwrites")
            place = None
        places.append(place)
    return places
