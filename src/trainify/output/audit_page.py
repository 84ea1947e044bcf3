"""The report of an audit as one HTML page, with a picture of the gradient's way."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from ..live.audit.report import Cause, Cut, Flow, Passage, Report, patterns
from .audit import headline, shown

_ROW, _INDENT, _LEFT, _TOP = 26, 22, 26, 44
_TEXT = 7.0
"""Width of a letter in the picture, in the units of its coordinates."""
_TIMES = "\N{MULTIPLICATION SIGN}"
_FOLDED = 3
"""From so many equal neighbours on, one stands for all."""
_AROUND = 2
"""Lines of source shown before and after that of a cut."""

_WORDS = {
    Flow.FLOWS: "the gradient flows",
    Flow.ENDS: "the gradient ends here",
    Flow.LIES: "the gradient is wrong",
    Flow.ZEROS: "zeros alone arrive",
    Flow.NONE: "no gradient arrives",
    Flow.UNUSED: "not used by the loss, or nothing to learn",
}


def page(report: Report, title: str = "model", root: str | None = None) -> str:
    """All of the report; the page needs no other file and no network.

    Args:
        title: What was audited.
        root: Paths are shown relative to this folder, by default the current one.
    """
    root = os.getcwd() if root is None else root
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="head {"ok" if report.ok else "bad"}">{escape(headline(report))}</p>',
        f"<p>{escape(report.proof)}.</p>" if report.proof else "",
        f"<p>{escape(report.error)}</p>" if report.error and report.cuts else "",
        *(_card(number, cut, root) for number, cut in enumerate(report.cuts, 1)),
        _picture(report),
        _parameters(report),
        *(f'<p class="note">{escape(note)}</p>' for note in report.notes),
    ]
    return _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(filter(None, parts)))


# -- the picture ----------------------------------------------------------------------------------


@dataclass
class _Node:
    """A module, with those in it; ``many`` equal ones may stand for themselves in one."""

    name: str
    path: str = ""
    passage: Passage | None = None
    children: list[_Node] = field(default_factory=list)
    many: int = 1

    @property
    def flow(self) -> Flow:
        """Its own, or the worst in it."""
        flows = {child.flow for child in self.children}
        flows |= {self.passage.flow} if self.passage else set()
        for flow in (Flow.ENDS, Flow.LIES, Flow.NONE, Flow.FLOWS, Flow.ZEROS):
            if flow in flows:
                return flow
        return Flow.UNUSED

    @property
    def entered(self) -> Flow | None:
        """What comes in; None where that is whatever has come so far."""
        if self.passage is None and self.children:
            return self.children[-1].entered
        flow = self.flow if self.passage is None else self.passage.flow
        return None if flow is Flow.ENDS else flow

    @property
    def like(self) -> object:
        """Equal for modules that look the same."""
        own = self.passage and (self.passage.type, self.passage.flow, self.passage.parameters)
        return own, tuple((child.name, child.like, child.many) for child in self.children)


def _tree(passages: Sequence[Passage]) -> _Node:
    top = _Node("")
    nodes = {"": top}
    for passage in passages:
        parent, path = top, ""
        for part in passage.module.split(".") if passage.module else ():
            path = f"{path}.{part}" if path else part
            if path not in nodes:
                nodes[path] = _Node(part, path)
                parent.children.append(nodes[path])
            parent = nodes[path]
        parent.passage = passage
    return _folded(top)


def _folded(node: _Node) -> _Node:
    node.children = [_folded(child) for child in node.children]
    kept: list[_Node] = []
    i = 0
    while i < len(node.children):
        first = node.children[i]
        n = 1
        while i + n < len(node.children) and node.children[i + n].like == first.like:
            n += 1
        if n >= _FOLDED and first.name.isdigit():
            last = node.children[i + n - 1]
            first.name, first.many = f"{first.name} … {last.name}", n
            kept.append(first)
        else:
            kept += node.children[i : i + n]
        i += n
    node.children = kept
    return node


def _picture(report: Report) -> str:
    """The modules from the loss to the inputs, as the gradient goes."""
    if not report.passages:
        return ""
    top = _tree(report.passages)
    marks: dict[str, list[tuple[int, Cut]]] = {}
    for number, cut in enumerate(report.cuts, 1):
        for module in cut.marked:
            marks.setdefault(module, []).append((number, cut))
    drawn = _Drawing(marks)
    drawn.loss()
    drawn.node(top, 0)
    drawn.inputs()
    legend = "".join(
        f'<span><i class="{flow.value}"></i>{words}</span>' for flow, words in _WORDS.items()
    )
    return (
        "<h2>The gradient's way</h2>"
        f'<p class="legend">{legend}</p><div class="wide">{drawn.svg()}</div>'
    )


class _Drawing:
    def __init__(self, marks: dict[str, list[tuple[int, Cut]]]) -> None:
        self._marks = marks
        self._lines: list[str] = []
        self._rows: list[str] = []
        self._y = _TOP
        self._width = 0.0
        self._come = Flow.FLOWS

    def loss(self) -> None:
        self._rows.append(_text(_LEFT - 12, 20, "loss", "end-label"))
        self._line(_LEFT, 28, self._y, Flow.FLOWS)

    def inputs(self) -> None:
        self._rows.append(_text(_LEFT - 12, self._y + 14, "inputs", "end-label"))

    def node(self, node: _Node, depth: int) -> None:
        """A row for the module, and those of its modules, last first, beside its line."""
        x, y = _LEFT + depth * _INDENT, self._y
        flow = node.passage.flow if node.passage else node.flow
        self._row(node, flow, x, y)
        self._y += _ROW
        below = self._y - _ROW + 6
        for child in reversed(node.children):
            come = child.entered or self._come
            passing = self._come if come is Flow.UNUSED else come
            self._line(x, below, self._y - 8, passing)
            self._branch(x, x + _INDENT, self._y, come)
            below = self._y - 8
            if come is not Flow.UNUSED:
                self._come = come
            self.node(child, depth + 1)

    def _row(self, node: _Node, flow: Flow, x: float, y: float) -> None:
        name = node.name or "model"
        kind = node.passage.type if node.passage else ""
        said = f"{node.path or name}: {_WORDS[flow]}"
        row = [f"<g><title>{escape(said)}</title>"]
        row.append(_dot(x, y, flow) if node.passage else _joint(x, y, self._come))
        at = x + 14
        row.append(_text(at, y + 4, name, f"name {flow.value if node.passage else 'list'}"))
        at += _TEXT * len(name) + 10
        if node.many > 1:
            many = f"{_TIMES}{node.many}"
            row.append(_text(at, y + 4, many, "many"))
            at += _TEXT * len(many) + 10
        if kind:
            row.append(_text(at, y + 4, kind, "kind"))
            at += _TEXT * len(kind) + 10
        for number, cut in self._marks.get(node.path, ()) if node.passage else ():
            named = cut.op and cut.cause is not Cause.GRAD_MODE
            label = f"{number}  {cut.cause.value}" + (f": {cut.op}" if named else "")
            width = _TEXT * len(label) + 16
            row.append(
                f'<a href="#cut-{number}"><rect class="mark {cut.kind}" x="{at:.0f}" y="{y - 9}" '
                f'width="{width:.0f}" height="18" rx="9"/>'
                + _text(at + 8, y + 4, label, "mark-text")
                + "</a>"
            )
            at += width + 6
        self._rows.append("".join(row) + "</g>")
        self._width = max(self._width, at)

    def _line(self, x: float, top: float, bottom: float, flow: Flow) -> None:
        self._lines.append(f'<path class="way {flow.value}" d="M{x} {top}V{bottom}"/>')

    def _branch(self, x: float, to: float, y: float, flow: Flow) -> None:
        self._lines.append(
            f'<path class="way {flow.value}" d="M{x} {y - 8}Q{x} {y} {x + 8} {y}H{to}"/>'
        )

    def svg(self) -> str:
        height, width = self._y + 30, max(self._width + 20, 360)
        return (
            f'<svg viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
            'role="img" aria-label="The modules, and what the gradient does in each">'
            f"{''.join(self._lines)}{''.join(self._rows)}</svg>"
        )


def _dot(x: float, y: float, flow: Flow) -> str:
    if flow is Flow.ENDS:
        return (
            f'<circle class="dot ends" cx="{x}" cy="{y}" r="7"/>'
            f'<path class="cross" d="M{x - 3} {y - 3}l6 6m0 -6l-6 6"/>'
        )
    return f'<circle class="dot {flow.value}" cx="{x}" cy="{y}" r="5"/>'


def _joint(x: float, y: float, come: Flow) -> str:
    """The dot of a list of modules, which is never run itself."""
    return f'<circle class="dot {come.value}" cx="{x}" cy="{y}" r="3.5"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'


# -- words ----------------------------------------------------------------------------------------


def _card(number: int, cut: Cut, root: str) -> str:
    rows = [("op", cut.op or ""), ("module", ", ".join(patterns(cut.modules)))]
    if cut.scope_place is not None:
        path, line = cut.scope_place
        rows.append(("gradients off at", f"{shown(path, root)}:{line}"))
    names = patterns(cut.parameters)
    count = len(cut.parameters)
    rows.append((f"{count} parameter{'s' * (count != 1)}", ", ".join(names)))
    listed = "".join(
        f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in rows if text
    )
    place = f"{shown(cut.path, root)}:{cut.line}"
    return (
        f'<section class="cut {cut.kind}" id="cut-{number}"><h3><b>{number}</b> '
        f"<code>{escape(place)}</code> <small>in {escape(cut.function)} · "
        f"{escape(cut.cause.value)}</small></h3><p>{escape(cut.message)}</p>"
        f"{_source(cut)}<dl>{listed}</dl></section>"
    )


def _source(cut: Cut) -> str:
    lines = linecache.getlines(cut.path)
    if not 0 < cut.line <= len(lines):
        return ""
    first = max(cut.line - _AROUND, 1)
    shown_lines = lines[first - 1 : cut.line + _AROUND]
    margin = min((len(x) - len(x.lstrip()) for x in shown_lines if x.strip()), default=0)
    rows = []
    for number, line in enumerate(shown_lines, first):
        text = f"{number:>5}  {line.rstrip()[margin:]}"
        rows.append(f"<mark>{escape(text)}</mark>" if number == cut.line else escape(text))
    return "<pre>" + "\n".join(rows) + "</pre>"


def _parameters(report: Report) -> str:
    def rows() -> Iterator[str]:
        groups = (
            ("no gradient", "ends", report.missing),
            ("a wrong gradient", "lies", report.wrong),
            ("zeros alone", "zeros", report.zeros),
            ("not used", "unused", report.unused),
            ("frozen", "unused", report.frozen),
        )
        for label, kind, names in groups:
            if names:
                listed = " ".join(f"<code>{escape(name)}</code>" for name in patterns(names))
                yield (
                    f'<tr><th><i class="{kind}"></i>{label}</th>'
                    f"<td>{len(names)}</td><td>{listed}</td></tr>"
                )

    body = "".join(rows())
    return f"<h2>Parameters</h2><table>{body}</table>" if body else ""


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: gradient audit</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #667080; --paper: #fff; --box: #f5f7f9;
  --rule: #dfe4ea; --flows: #17924b; --ends: #d1242f; --lies: #d97706; --none: #d1242f;
  --unused: #aab2bd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #97a1af; --paper: #14171c;
  --box: #1c2128; --rule: #323944; --flows: #3fb96d; --ends: #ff6b6b; --lies: #f5a742;
  --none: #ff6b6b; --unused: #667080; } }
body { margin: 2.5rem auto; max-width: 62rem; padding: 0 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0; } h3 small { color: var(--soft); font-weight: 400; }
code, pre, svg text { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
code { font-size: .92em; }
.head { font-size: 1.1rem; margin: .3rem 0 1rem; } .head.ok { color: var(--flows); }
.head.bad { color: var(--ends); }
.cut { background: var(--box); border: 1px solid var(--rule); border-left: 4px solid var(--ends);
  border-radius: 6px; padding: .9rem 1.1rem; margin: 1rem 0; }
.cut.wrong { border-left-color: var(--lies); }
.cut h3 b { display: inline-block; min-width: 1.5em; line-height: 1.5em; border-radius: 1em;
  text-align: center; color: var(--paper); background: var(--ends); font-size: .85em; }
.cut.wrong h3 b { background: var(--lies); }
.cut p { margin: .5rem 0; }
.cut:target { outline: 2px solid var(--ink); }
pre { background: var(--paper); border: 1px solid var(--rule); border-radius: 4px;
  padding: .5rem; overflow-x: auto; font-size: .85em; line-height: 1.5; margin: .6rem 0; }
mark { background: color-mix(in srgb, var(--ends) 18%, transparent); color: inherit;
  display: inline-block; min-width: 100%; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .4rem 0 0;
  font-size: .92em; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; border: 1px solid var(--rule); border-radius: 6px; background: var(--box);
  padding: .5rem 1rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; color: var(--soft); font-size: .9em; }
i { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .45em; }
i.flows { background: var(--flows); } i.ends { background: var(--ends); }
i.lies { background: var(--lies); } i.unused { background: var(--unused); }
i.zeros { box-shadow: inset 0 0 0 2px var(--unused); }
i.none { box-shadow: inset 0 0 0 2px var(--none); }
table { border-collapse: collapse; font-size: .92em; } th { text-align: left; font-weight: 500;
  white-space: nowrap; } th, td { padding: .3rem 1.2rem .3rem 0; vertical-align: top;
  border-top: 1px solid var(--rule); } td:nth-child(2) { text-align: right; }
.note { color: var(--soft); } .note::before { content: "note: "; font-weight: 600; }
svg { display: block; } svg text { font-size: 11.6px; fill: var(--ink); }
svg .kind, svg .many { fill: var(--soft); } svg .many { font-weight: 700; }
svg .end-label { fill: var(--soft); font-style: italic; }
svg .name.ends, svg .name.none { fill: var(--ends); } svg .name.lies { fill: var(--lies); }
svg .name.unused, svg .name.zeros, svg .name.list { fill: var(--soft); }
.way { fill: none; stroke-width: 3; stroke-linecap: round; }
.way.flows { stroke: var(--flows); } .way.ends { stroke: var(--ends); }
.way.lies { stroke: var(--lies); } .way.none { stroke: var(--none); stroke-width: 2;
  stroke-dasharray: 1 6; }
.way.zeros { stroke: var(--unused); stroke-width: 2; stroke-dasharray: 1 6; }
.way.unused { stroke: var(--unused); stroke-width: 1.5; }
.dot { stroke: var(--box); stroke-width: 2; } .dot.flows { fill: var(--flows); }
.dot.ends { fill: var(--ends); } .dot.lies { fill: var(--lies); }
.dot.none { fill: var(--box); stroke: var(--none); } .dot.unused { fill: var(--unused); }
.dot.zeros { fill: var(--box); stroke: var(--unused); }
.cross { stroke: var(--box); stroke-width: 2; stroke-linecap: round; }
.mark { fill: var(--ends); } .mark.wrong { fill: var(--lies); }
svg .mark-text { fill: var(--paper); }
"""
