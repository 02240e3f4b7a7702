"""DrawingML: the shapes of slides and sheets, and the charts, SmartArt and pictures of all Office files, to blocks.

The module extracts the text of drawings without their document: callers pass the page number for the blocks.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from mcp_servers.retriever.document import Block, blocks_of_table, spread
from mcp_servers.retriever.formats.formulas import formula_text
from mcp_servers.retriever.formats.number_formats import plain_number, show_number
from mcp_servers.retriever.formats.package import Parts, read_integer
from mcp_servers.retriever.formats.text import to_superscript, with_address

MAX_GROUP_DEPTH = 16
"""Maximum number of levels of nested groups that are read; deeper ones get a note."""

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_ESCAPE = re.compile(r"_x([0-9A-Fa-f]{4})_")
_PAGE_FIELD = "slidenum"


def unescape(text: str) -> str:
    """Decode escapes such as _x000B_ in a text of a sheet or slide."""
    if "_x" not in text:
        return text
    return _ESCAPE.sub(lambda match: _character(int(match[1], 16)), text)


def _character(code: int) -> str:
    if code < 32:
        return {9: "\t"}.get(code, "\n" if code in (10, 11, 12) else "")
    return chr(code) if not 0xD800 <= code < 0xE000 else "\ufffd"


def local(element: Any) -> str:
    """Return an element's name without its namespace; empty for comments and instructions."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def shown_children(element: Any) -> Sequence[Any]:
    """Return the children of an element; of a shape with a new and an old form, only the form that is shown."""
    children = []
    for child in element:
        if local(child) != "AlternateContent":
            children.append(child)
        elif len(child):
            children += shown_children(child[0])
    return children


def text_lines(body: Any, parts: Parts, part: str) -> list[str]:
    """Return the paragraphs of a text body as lines, indented by their level, with automatic numbers and addresses."""
    lines: list[str] = []
    counts: dict[int, int] = {}
    for paragraph in body.iter(f"{_A}p"):
        text = unescape(_paragraph_text(paragraph, parts, part)).strip()
        properties = paragraph.find(f"{_A}pPr")
        level = 0 if properties is None else read_integer(properties.get("lvl"), 0)
        numbering = None if properties is None else properties.find(f"{_A}buAutoNum")
        # Deeper levels begin again below the next paragraph of this level.
        counts = {depth: count for depth, count in counts.items() if depth <= level}
        if not text:
            continue
        if numbering is None:
            counts.pop(level, None)
            mark = ""
        else:
            counts[level] = counts[level] + 1 if level in counts else read_integer(numbering.get("startAt"), 1)
            mark = _auto_number(counts[level], numbering.get("type", "arabicPeriod"))
        indentation = "  " * min(level, 8)
        lines += [f"{indentation}{mark}{line.strip()}" for line in [text.replace("\n", " ").replace("\v", " ")]]
    return lines


def _paragraph_text(paragraph: Any, parts: Parts, part: str) -> str:
    pieces: list[str] = []
    for child in shown_children(paragraph):
        name = local(child)
        if name == "br":
            pieces.append("\n")
        elif name == "fld" and child.get("type") == _PAGE_FIELD:
            continue
        elif name in ("m", "oMath", "oMathPara"):
            pieces.append(formula_text(child))
        elif name in ("r", "fld"):
            text = "".join(run.text or "" for run in child.iter("{*}t"))
            properties = child.find(f"{_A}rPr")
            if properties is not None and re.fullmatch(r"0*[1-9]\d*%?", properties.get("baseline", "")):
                text = to_superscript(text)
            link = child.find(f"{_A}rPr/{_A}hlinkClick")
            relation = None if link is None else parts.relations(part).get(link.get(f"{_R}id", ""))
            pieces.append(with_address(text, relation.target if relation and relation.is_external else None))
    return "".join(pieces)


def _auto_number(number: int, kind: str) -> str:
    if kind.startswith("alpha") and 0 < number < 1_000:  # after z comes aa: a large number would be a long text
        text = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
    elif kind.startswith("roman"):
        text = roman(number).lower()
    else:
        text = str(number)
    text = text.upper() if "Uc" in kind else text
    return f"({text}) " if kind.endswith("ParenBoth") else f"{text}) " if kind.endswith("ParenR") else f"{text}. "


def roman(number: int) -> str:
    """Return a number from 1 to 3 999 in Roman numerals, and other numbers in digits."""
    if not 0 < number < 4_000:
        return str(number)
    text = ""
    for value, letters in zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"),
        strict=True,
    ):
        text += letters * (number // value)
        number %= value
    return text


def alt_text(element: Any) -> str:
    """Return the alternative text of a shape or picture."""
    for properties in element.iter("{*}cNvPr", "{*}docPr"):
        words = " ".join((properties.get("descr") or "").split()) or " ".join((properties.get("title") or "").split())
        if words:
            return words
    return ""


def shape_blocks(shape: Any, parts: Parts, part: str, page: int | None, depth: int = 0) -> Iterator[Block]:
    """Yield the blocks of a shape: its text, its table, its chart or SmartArt, the shapes of a group."""
    kind = local(shape)
    if kind == "grpSp":
        if depth >= MAX_GROUP_DEPTH:
            parts.notes.append(f"groups of shapes deeper than {MAX_GROUP_DEPTH} were not read")
            return
        if words := alt_text_of(shape, "nvGrpSpPr"):
            yield Block("prose", f"Picture: {words}", page=page)
        for child in shown_children(shape):
            yield from shape_blocks(child, parts, part, page, depth + 1)
        return
    if kind not in ("sp", "pic", "graphicFrame", "cxnSp", "contentPart"):
        return
    body = next((child for child in shape if local(child) in ("txBody", "txbx")), None)
    if body is not None and (text := "\n".join(text_lines(body, parts, part))):
        yield Block("list", text, page=page)
    if kind == "graphicFrame":
        yield from graphic_blocks(shape, parts, part, page)
    if words := alt_text(shape):
        yield Block("prose", f"Picture: {words}", page=page)
    link = next(iter(shape.iter(f"{_A}hlinkClick")), None) if kind in ("pic", "sp") else None
    if link is not None and local(link.getparent()) == "cNvPr":
        relation = parts.relations(part).get(link.get(f"{_R}id", ""))
        if relation is not None and relation.is_external and (address := with_address("", relation.target)):
            yield Block("prose", f"Link: {address}", page=page)


def alt_text_of(shape: Any, properties: str) -> str:
    """Return the alternative text of a group, without those of its shapes."""
    own = next((child for child in shape if local(child) == properties), None)
    return "" if own is None else alt_text(own)


def graphic_blocks(frame: Any, parts: Parts, part: str, page: int | None = None) -> Iterator[Block]:
    """Yield the blocks of a frame's contents: a table, a chart or SmartArt."""
    relations = parts.relations(part)
    for element in frame.iter():
        name = local(element)
        if name == "tbl" and element.tag == f"{_A}tbl":
            yield from _blocks(_table_rows(element, parts, part), page)
        elif name == "chart" and (relation := relations.get(element.get(f"{_R}id", ""))):
            root = parts.xml(relation.target)
            if root is not None:
                parts.embedded.update(related.target for related in parts.relations(relation.target).values())
                yield from chart_blocks(root, page)
                for user_shapes in parts.related_parts(relation.target, "chartUserShapes"):
                    yield from read_drawing(parts, user_shapes, page)
        elif name == "relIds" and (relation := relations.get(element.get(f"{_R}dm", ""))):
            root = parts.xml(relation.target)
            if root is not None and (lines := diagram_lines(root)):
                yield Block("list", "\n".join(lines), page=page)


def read_drawing(parts: Parts, name: str, page: int | None = None) -> Iterator[Block]:
    """Yield the blocks of a drawing part, as sheets and charts have them."""
    root = parts.xml(name)
    for anchor in () if root is None else shown_children(root):
        for shape in shown_children(anchor):
            yield from shape_blocks(shape, parts, name, page)


def _blocks(rows: list[list[str]], page: int | None) -> Iterator[Block]:
    if any(cell.strip() for row in rows for cell in row):
        yield from blocks_of_table(rows, page)


def _table_rows(table: Any, parts: Parts, part: str) -> list[list[str]]:
    """Return the rows of a table, with a merged cell's text in each of its cells."""
    above: dict[int, str] = {}
    rows: list[list[str]] = []
    for row in table.findall(f"{_A}tr"):
        cells: list[str] = []
        for column, cell in enumerate(row.findall(f"{_A}tc")):
            if cell.get("hMerge") in ("1", "true"):
                text = cells[-1] if cells else ""
            elif cell.get("vMerge") in ("1", "true"):
                text = above.get(column, "")
            else:
                text = " ".join(line.strip() for line in text_lines(cell, parts, part))
            above[column] = text
            cells.append(text)
        alone = len(cells) > 1 and all(cell.get("hMerge") in ("1", "true") for cell in row.findall(f"{_A}tc")[1:])
        rows.append(spread(cells[0], len(cells), alone=True) if alone else cells)
    return rows


def chart_blocks(root: Any, page: int | None = None) -> Iterator[Block]:
    """Yield the data of a chart as a table with the title in the corner, and its other texts."""
    plots = [area for area in root.iter("{*}plotArea") if len(area)]
    titles = list(root.iter("{*}title"))
    main = next((title for title in titles if local(title.getparent()) == "chart"), None)
    corner = _words(main) if main is not None else ""
    used = False
    for plot in (kind for area in plots for kind in area if local(kind).endswith(("Chart", "chart"))):
        series = [child for child in plot if local(child) == "ser"]
        labels: dict[int, str] = {}
        columns: list[tuple[str, dict[int, str]]] = []
        for one_series in series:  # the labels are those of the first series that has any
            labels = labels or _points(one_series, "cat") or _points(one_series, "xVal")
            columns.append(
                (_first(_points(one_series, "tx")), _points(one_series, "val") or _points(one_series, "yVal"))
            )
        count = max((max(values, default=-1) + 1 for values in (labels, *(values for _, values in columns))), default=0)
        rows = [[corner, *(name for name, _ in columns)]]
        rows += [
            [labels.get(at, ""), *(values.get(at, "") for _, values in columns)]
            for at in range(min(count, 5_000))  # bounded, because the file chooses the index of a point
        ]
        if len(rows) > 1:
            used = True
            yield from _blocks(rows, page)
    # newer kinds of charts (treemap, sunburst, funnel) store their points in another form
    data = [element for element in root.iter("{*}data") if local(element.getparent()) == "chartData"]
    for dataset in data:
        levels = [[pt.text or "" for pt in level.iter("{*}pt")] for level in dataset.iter("{*}lvl")]
        if levels:
            used = True
            height = max(map(len, levels))
            yield from _blocks(
                [[corner]] + [[lv[at] if at < len(lv) else "" for lv in levels] for at in range(height)], page
            )
    others = [words for title in titles if title is not main and (words := _words(title))]
    others += [words for label in root.iter("{*}dLbl", "{*}trendline") if (words := _words(label))]
    if main is not None and not used and corner:
        others.insert(0, corner)
    if others:
        yield Block("list", "\n".join(dict.fromkeys(others)), page=page)


def _words(element: Any) -> str:
    texts = [run.text or "" for run in element.iter(f"{_A}t")] or [value.text or "" for value in element.iter("{*}v")]
    return " ".join("".join(texts).split())


def _first(points: dict[int, str]) -> str:
    return " ".join(points.values())


def _points(series: Any, name: str) -> dict[int, str]:
    """Return the cached texts or numbers of a part of a series by their index, as their format shows them."""
    part = next((child for child in series if local(child) == name), None)
    if part is None:
        return {}
    levels: list[dict[int, str]] = []
    for cache in part.iter("{*}strCache", "{*}numCache", "{*}strLit", "{*}numLit", "{*}lvl"):
        code = next((element.text or "" for element in cache.iter("{*}formatCode")), "General")
        is_number = local(cache).startswith("num")
        levels.append(
            {
                max(read_integer(point.get("idx"), 0), 0): _point(point, code if is_number else None)
                for point in cache
                if local(point) == "pt"
            }
        )
    if not levels:
        return {0: text} if (text := _words(part)) else {}
    indexes = sorted({at for level in levels for at in level})
    return {at: " · ".join(filter(None, (level.get(at, "") for level in reversed(levels)))) for at in indexes}


def _point(point: Any, code: str | None) -> str:
    text = next((value.text or "" for value in point.iter("{*}v")), "")
    if code is None:
        return text
    try:
        return show_number(float(text), code) if code != "General" else plain_number(float(text))
    except ValueError:
        return text


def diagram_lines(root: Any) -> list[str]:
    """Return the texts of SmartArt as lines, indented by their place in its tree."""
    texts: dict[str, str] = {}
    for point in root.iter("{*}pt"):
        words = " ".join("".join(run.text or "" for run in point.iter(f"{_A}t")).split())
        if point.get("type") != "pres" and words:
            texts[point.get("modelId", "")] = words
    children: dict[str, list[tuple[int, str]]] = {}
    for link in root.iter("{*}cxn"):
        if link.get("type", "parOf") == "parOf":
            children.setdefault(link.get("srcId", ""), []).append(
                (read_integer(link.get("srcOrd"), 0), link.get("destId", ""))
            )
    tops = [point.get("modelId", "") for point in root.iter("{*}pt") if point.get("type") == "doc"]
    lines: list[str] = []
    visited: set[str] = set()
    stack = [(top, -1) for top in reversed(tops)]
    while stack:
        ident, depth = stack.pop()
        if ident in visited:  # a damaged tree may have a cycle
            continue
        visited.add(ident)
        if ident in texts:
            lines.append("  " * min(max(depth, 0), 8) + texts[ident])
        stack += [(child, depth + 1) for _, child in sorted(children.get(ident, ()), reverse=True)]
    return lines + [text for ident, text in texts.items() if ident not in visited]
