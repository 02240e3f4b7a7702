"""Tools are found by the words of their names, descriptions and arguments, in any script."""

from dataclasses import replace
from typing import Any

import pytest

from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.tool_index import ToolIndex, words_in
from tests.tools.many import many_tools


def tool(name: str, description: str, **properties: Any) -> ToolInfo:
    return ToolInfo(name, name, "srv", "user", description, {"type": "object", "properties": properties})


TOOLS = (
    tool("files__read_file", "Return the content of a file.", path={"type": "string"}),
    tool("files__writeFile", "Store text.", path={"type": "string", "description": "Where it is put."}),
    tool("cal__events", "Lists appointments of a day.", day={"type": "string"}),
    tool("wx__get", "查询某个城市的天气预报", 城市={"type": "string"}),
    tool("fr__evenement", "Crée un événement à la date donnée.", date={"type": "string"}),
    tool(
        "crm__call",
        "Does a thing.",
        options={"type": "object", "properties": {"customer": {"description": "Who buys."}}},
    ),
    tool("ko__search", "고객 주문을 검색합니다"),
)


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("read a file", "files__read_file"),
        ("write file", "files__writeFile"),
        ("appointment", "cal__events"),
        ("event of a day", "cal__events"),
        ("明天的天气怎么样", "wx__get"),
        ("creer evenement", "fr__evenement"),
        ("ÉVÉNEMENT", "fr__evenement"),
        ("customers", "crm__call"),
        ("주문 검색", "ko__search"),
        ("use crm__call, please", "crm__call"),
    ],
)
def test_the_best_tool_comes_first(query: str, best: str) -> None:
    assert ToolIndex(TOOLS).find(query, 3)[0].name == best


@pytest.mark.parametrize("query", ["", "   ", "zzz", "?!", "\x00", "\ud800"])
def test_words_in_no_tool_find_nothing(query: str) -> None:
    assert ToolIndex(TOOLS).find(query, 5) == []


def test_a_search_among_no_tools_finds_nothing() -> None:
    assert ToolIndex[ToolInfo](()).find("file", 5) == []


def test_every_tool_of_many_is_found_first_by_its_description() -> None:
    tools = many_tools(300)
    index = ToolIndex(tools)
    missed_names = [
        tool.name
        for tool in tools
        if tool not in index.find(f"{tool.remote_name.replace('_', ' a ')} of {tool.server}", 5)
    ]
    assert missed_names == []


def test_a_long_description_and_a_deep_schema_cost_only_the_part_that_is_read() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    innermost = schema
    for _ in range(500):
        innermost["properties"]["deep"] = {"type": "object", "properties": {}}
        innermost = innermost["properties"]["deep"]
    long_tool = replace(TOOLS[0], description="word " * 100_000 + "needle", input_schema=schema)
    index = ToolIndex([long_tool, *TOOLS[1:]])
    assert index.find("needle", 5) == []
    assert index.find("deep", 5) == [long_tool]


def test_names_are_split_into_words() -> None:
    assert list(words_in("readFile get_HTTP_status2 Categories")) == [
        "read",
        "file",
        "get",
        "http",
        "status2",
        "category",
    ]
