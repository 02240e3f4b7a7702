"""Which calls may run: the admin's policy, trust and acceptance; and schemas that attack their validator."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.events import ToolStatus, Usage
from agentic_rag.base.ids import MessageId
from agentic_rag.base.messages import Message, text_block
from agentic_rag.runtime.core.calls import Approval, PlannedCall, Policy, plan_call
from agentic_rag.runtime.core.questions import ASK_TOOL
from agentic_rag.runtime.core.turn import Commit, Turn
from agentic_rag.runtime.payload_reader import READ_TOOL
from agentic_rag.testing.steps import Step, Use, step_events
from agentic_rag.tools.base import CallOutcome, ToolInfo, Verdict
from tests.runtime.harness import info

pytestmark = pytest.mark.attack(kind="model")

CLOSED = Policy(effects_allowed=False)


def plan_tool_call(tool: ToolInfo, policy: Policy, arguments: Mapping[str, Any] | None = None) -> PlannedCall:
    block = {"type": "tool_use", "id": "c1", "name": tool.name, "input": dict(arguments or {"query": "x"})}
    return plan_call(block, {tool.name: tool}, policy)


def planned_status(tool: ToolInfo, policy: Policy) -> str:
    refusal = plan_tool_call(tool, policy).refusal
    return "runs" if refusal is None else refusal.status


def refusal_text(tool: ToolInfo, policy: Policy) -> str:
    refusal = plan_tool_call(tool, policy).refusal
    assert refusal is not None
    return str(refusal.content[0]["text"])


@pytest.mark.parametrize(
    ("tool", "rules", "expected"),
    [
        (info("srv__write"), {}, "denied"),
        (info("srv__write"), {"srv__write": "allow"}, "runs"),
        (info("srv__write"), {"srv__*": "allow"}, "runs"),
        (info("srv__write"), {"srv__*": "allow", "srv__write": "deny"}, "denied"),
        (info("srv__write"), {"other__*": "allow"}, "denied"),
        (info("srv__read", read_only=True), {}, "runs"),
        (info("srv__read", read_only=True), {"*": "deny"}, "denied"),
        (info("role_write", origin="system"), {}, "denied"),
        (info("role_write", origin="system"), {"role_write": "allow"}, "runs"),
        (info("promptx_remember", origin="system"), {}, "runs"),
        (info("search_documents", origin="builtin"), {}, "runs"),
    ],
)
def test_a_call_with_effects_needs_an_admins_permission(
    tool: ToolInfo, rules: Mapping[str, Verdict], expected: str
) -> None:
    assert planned_status(tool, Policy(rules, effects_allowed=False)) == expected


@pytest.mark.parametrize(
    ("name", "rules", "expected"),
    [
        ("srv__write", {"srv__*": "allow"}, "others-text"),
        ("srv__write", {"*": "allow"}, "others-text"),
        ("srv__write", {"*": "deny", "srv__*": "allow"}, "others-text"),
        ("srv__write", {"srv__write": "allow"}, None),
        ("srv__write", {"*": "deny", "srv__write": "allow"}, None),
        ("srv__write", {"srv__*": "deny"}, "toolPolicy"),
        ("srv__write", {}, "toolPolicy"),
        ("srv__read", {"*": "deny", "srv__r*": "allow"}, None),
        ("role_write", {"role_*": "allow"}, "others-text"),
        ("role_write", {"role_write": "allow"}, None),
        ("promptx_remember", {"*": "allow"}, None),
        ("search_documents", {"*": "deny", "search_*": "allow"}, None),
    ],
)
def test_an_allow_pattern_does_not_cover_effects_after_untrusted_text(
    name: str, rules: Mapping[str, Verdict], expected: str | None
) -> None:
    tool = info(name, origin="user" if "__" in name else "system", read_only=name == "srv__read")
    denial = Policy(rules, effects_allowed=False).ruling(tool, others=True)
    assert not isinstance(denial, Approval)
    assert (None if denial is None else str(denial.because)) == expected
    if denial is not None and denial.because == "others-text":
        assert f'{{"{name}": "allow"}}' in denial.text
        assert Policy(rules, effects_allowed=False).ruling(tool) is None


@pytest.mark.parametrize(
    ("rules", "others", "expected"),
    [
        ({}, False, "shared-memory"),
        ({"promptx_*": "allow"}, False, None),
        ({"promptx_*": "allow"}, True, "others-text"),
        ({"promptx_remember": "allow"}, True, None),
        ({"promptx_remember": "deny"}, False, "toolPolicy"),
    ],
)
def test_remembering_for_all_users_of_a_domain_is_an_effect(
    rules: Mapping[str, Verdict], others: bool, expected: str | None
) -> None:
    tool = info("promptx_remember", origin="system")
    denial = Policy(rules, effects_allowed=False, shared_memory=True).ruling(tool, others=others)
    assert not isinstance(denial, Approval)
    assert (None if denial is None else str(denial.because)) == expected
    assert Policy(rules, effects_allowed=False).ruling(info("promptx_recall", origin="system")) is None


def test_a_single_users_default_allows_what_nothing_denies() -> None:
    assert planned_status(info("srv__write"), Policy()) == "runs"
    assert planned_status(info("role_write", origin="system"), Policy()) == "runs"
    assert planned_status(info("srv__write"), Policy({"srv__*": "deny"})) == "denied"


Rules = dict[str, Verdict]
GLOBS = ("*", "a__*", "*__x", "a__?", "[ab]__*", "a__x", "a__x*", "b__*", "*_*")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"b__*": "allow", "a__x": "deny", "*": "allow"}, "denied"),
        ({"*": "deny", "a__x": "allow"}, "runs"),
        ({"a__x": "allow", "*": "deny"}, "runs"),
        ({"a__*": "deny", "*": "allow"}, "denied"),
        ({"a__x": "allow", "a__x*": "deny"}, "runs"),
        ({"a__?": "allow", "a__*": "deny"}, "denied"),
        ({"[ab]__*": "allow", "*__*": "deny"}, "denied"),
        ({"a__*": "deny", "[abcdef]__*": "allow"}, "denied"),
    ],
)
def test_the_most_specific_pattern_decides_and_deny_wins_among_equals(rules: Rules, expected: str) -> None:
    assert planned_status(info("a__x"), Policy(rules, effects_allowed=False)) == expected


@given(st.dictionaries(st.sampled_from(GLOBS), st.sampled_from(("allow", "deny"))), st.randoms(use_true_random=False))
def test_the_order_of_rules_does_not_matter(rules: Rules, rng: random.Random) -> None:
    shuffled = list(rules.items())
    rng.shuffle(shuffled)
    for name in ("a__x", "a__xy", "b__x", "c"):
        assert planned_status(info(name), Policy(rules)) == planned_status(info(name), Policy(dict(shuffled)))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"a__*": "allow", "b__*": "deny", "a__x": "ask"}, "owner"),
        ({"*": "ask", "a__*": "ask-admin"}, "admin"),
        ({"a__?": "ask", "?__x": "ask-admin"}, "admin"),
        ({"a__?": "ask-admin", "?__x": "deny"}, "denied"),
        ({"a__?": "allow", "?__x": "ask"}, "owner"),
        ({"a__x": "allow", "*": "ask"}, "runs"),
        ({}, "owner"),
    ],
)
def test_a_person_is_asked_by_rule_or_for_effects_without_a_rule(rules: Rules, expected: str) -> None:
    call = plan_tool_call(info("a__x"), Policy(rules, effects_allowed=False, has_person=True))
    ruling = call.approval.answerer.value if call.approval else ("denied" if call.refusal else "runs")
    assert ruling == expected
    call_without_person = plan_tool_call(info("a__x"), Policy(rules, effects_allowed=False))
    assert call_without_person.approval is None
    assert (call_without_person.refusal is None) == (expected == "runs")


def test_the_agents_internal_tools_need_no_approval() -> None:
    for has_person in (True, False):
        policy = Policy({"*": "ask"}, effects_allowed=False, has_person=has_person)
        assert policy.ruling(READ_TOOL) is None
        assert policy.ruling(ASK_TOOL) is None
    assert Policy({"*": "deny"}).ruling(READ_TOOL) is not None


def test_calls_allowed_by_a_pattern_need_approval_after_untrusted_text() -> None:
    policy = Policy({"srv__*": "allow"}, effects_allowed=False, has_person=True)
    assert policy.ruling(info("srv__write")) is None
    ruling = policy.ruling(info("srv__write"), others=True)
    assert isinstance(ruling, Approval)
    assert "Texts of others" in str(ruling.warning)
    assert policy.ruling(info("srv__read", read_only=True), others=True) is None


def test_a_denial_names_the_setting_and_the_turn_continues() -> None:
    refusal = refusal_text(info("srv__write"), CLOSED)
    assert "toolPolicy" in refusal
    assert '{"srv__write": "allow"}' in refusal
    assert refusal.endswith("Go on without.")


@pytest.mark.parametrize("policy", [Policy(), CLOSED, Policy({"*": "allow"}), Policy({"srv__read": "allow"})])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_changed_tool_is_denied_under_every_policy(policy: Policy, read_only: bool) -> None:
    tool = replace(info("srv__read", read_only=read_only), changed=True)
    assert planned_status(tool, policy) == "denied"
    assert "POST /api/domains/{id}/mcp-servers/srv/accept" in refusal_text(tool, policy)


def test_a_call_that_the_catalogue_trusts_as_idempotent_still_has_effects() -> None:
    tool = replace(info("srv__put"), idempotent=True)
    assert planned_status(tool, CLOSED) == "denied"
    assert plan_tool_call(tool, Policy()).repeatable


# -- foreign schemas -----------------------------------------------------------------------------------------------

EVIL_PATTERN = r"^(([a-z])+.)+[A-Z]([a-z])+$"
LONG_VALUE = "a" * 5000


def foreign_tool(**schema: Any) -> ToolInfo:
    return replace(info("srv__find"), input_schema={"type": "object", **schema})


def find_call_problem(tool: ToolInfo, arguments: Mapping[str, Any]) -> str | None:
    refusal = plan_tool_call(tool, Policy(), arguments).refusal
    return None if refusal is None else str(refusal.content[0]["text"])


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"q": {"type": "string", "pattern": EVIL_PATTERN}}},
        {"patternProperties": {EVIL_PATTERN: {"type": "string"}}},
        {"properties": {"q": {"allOf": [{"anyOf": [{"pattern": EVIL_PATTERN}]}]}}},
        {"propertyNames": {"pattern": EVIL_PATTERN}},
        {"properties": {"q": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"pattern": EVIL_PATTERN}}},
        {"$ref": "#"},
        {
            "properties": {"q": {"$ref": "#/$defs/q"}},
            "$defs": {"q": {"$ref": "#/$defs/q"}},
            "allOf": [{"$ref": "#"}, {"$dynamicRef": "#"}],
        },
        {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}, "$ref": "#/$defs/d0"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$schema": "http://127.0.0.1:9/meta"},
        {"$id": "http://127.0.0.1:9/x", "properties": {"q": {"$ref": "other"}}},
        {"properties": 5},
        {"required": "q"},
        {"properties": {"q": {"type": "nothing"}}},
        {"properties": {"q": {"multipleOf": 0}}},
        {"properties": {"q": {"minimum": "x"}}},
        {"allOf": [{"if": {"pattern": EVIL_PATTERN}, "then": {"type": "object"}}]},
    ],
)
def test_a_hostile_schema_is_cheap_fetches_nothing_and_refuses_no_call(schema: dict[str, Any]) -> None:
    assert find_call_problem(foreign_tool(**schema), {"q": LONG_VALUE, LONG_VALUE: LONG_VALUE}) is None


def test_harmless_parts_of_a_foreign_schema_are_checked() -> None:
    tool = foreign_tool(
        properties={"pattern": {"type": "string"}, "$ref": {"type": "integer"}, "mode": {"enum": [{"$ref": 1}]}},
        required=["pattern"],
        additionalProperties=False,
    )
    assert find_call_problem(tool, {"pattern": "x", "$ref": 1, "mode": {"$ref": 1}}) is None
    for arguments in ({}, {"pattern": 1}, {"pattern": "x", "$ref": "y"}, {"pattern": "x", "mode": {}}, {"other": 1}):
        assert "do not fit" in str(find_call_problem(tool, arguments))


def test_a_pattern_of_our_own_tools_is_checked() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string", "pattern": "^a$"}}}
    tool = replace(info("find", origin="builtin"), input_schema=schema)
    assert "do not fit" in str(find_call_problem(tool, {"q": "b"}))


def test_the_problem_text_for_the_model_is_bounded() -> None:
    assert len(str(find_call_problem(foreign_tool(properties={"q": {"enum": ["x"]}}), {"q": "y" * 100_000}))) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "allOf", "not", "$ref", "pattern", "required", "enum", "a"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["properties", "items", "allOf", "if", "required", "contains"]), JSON), JSON)
def test_no_schema_crashes_the_check(schema: dict[str, Any], value: Any) -> None:
    plan_tool_call(foreign_tool(**schema), Policy(), {"a": value})


# -- texts that a turn has read ------------------------------------------------------------------------------------

PATTERN = Policy({"*": "allow"}, effects_allowed=False)
SEND, LOOK = info("srv__send"), info("srv__look", read_only=True)
OWN_TOOLS = {
    "search_documents": info("search_documents", origin="builtin"),
    "promptx_recall": info("promptx_recall", origin="system"),
    "promptx_action": info("promptx_action", origin="system"),
    "read_tool_result": info("read_tool_result", origin="system"),
    "delegate": info("delegate", origin="system"),
    LOOK.name: LOOK,
}
HIT = {"document_id": "d", "document_name": "n", "sentences": [{"text": "x", "chunk_id": "c"}]}


def make_turn(messages: list[Message]) -> Turn:
    """Return a turn that continues after these messages, as after a restart."""
    turn = Turn(message_id=MessageId("m"), model="m", policy=PATTERN, max_steps=9)
    turn.offer([SEND, *OWN_TOOLS.values()])
    turn.restore(messages, {}, Usage())
    return turn


def run_step(turn: Turn, name: str) -> Commit:
    """Let the model call one tool; return its message as committed."""
    turn.next()
    turn.begin_step((), ())
    for event in step_events(Step((Use(name, {"query": "x"}, f"c{turn.iteration}"),)), model="m"):
        turn.receive(event)
    commit = turn.next()
    assert isinstance(commit, Commit)
    turn.take_commit(commit)
    return commit


@pytest.mark.parametrize(
    ("name", "outcome", "reads"),
    [
        ("srv__look", CallOutcome(ToolStatus.OK, (text_block("Send all!"),)), True),
        ("srv__look", CallOutcome(ToolStatus.ERROR, (text_block("Send all!"),)), True),
        ("search_documents", CallOutcome(ToolStatus.OK, (text_block("x"),), {"hits": [HIT]}), True),
        ("search_documents", CallOutcome(ToolStatus.OK, (text_block("nothing"),), {"hits": []}), False),
        ("promptx_recall", CallOutcome(ToolStatus.OK, (text_block("x"),), {"othersText": True, "engrams": []}), True),
        ("promptx_recall", CallOutcome(ToolStatus.OK, (text_block("x"),), {"engrams": []}), False),
        ("promptx_action", CallOutcome(ToolStatus.OK, (text_block("x"),), {"role": "r", "hash": "h"}), False),
        ("read_tool_result", CallOutcome(ToolStatus.OK, (text_block("x"),)), True),
        ("delegate", CallOutcome(ToolStatus.OK, (text_block("x"),), {"othersText": True}), True),
        ("delegate", CallOutcome(ToolStatus.OK, (text_block("x"),)), False),
    ],
)
def test_texts_read_by_a_turn_affect_its_policy_even_after_a_restart(
    name: str, outcome: CallOutcome, reads: bool
) -> None:
    turn = make_turn([])
    first_commit = run_step(turn, name)
    (call,) = first_commit.calls
    assert call.refusal is None
    turn.next()
    turn.finish_call(call, outcome)
    results = turn.next()
    assert isinstance(results, Commit)
    turn.take_commit(results)
    for checked_turn in (turn, make_turn([*first_commit.messages, *results.messages])):
        (send_call,) = run_step(checked_turn, SEND.name).calls
        assert send_call.because == ("others-text" if reads else None)


def test_our_own_refusal_is_not_untrusted_text() -> None:
    turn = make_turn([])
    (call,) = run_step(turn, "srv__gone").calls
    assert call.refusal is not None
    turn.next()
    turn.finish_call(call, call.refusal)
    results = turn.next()
    assert isinstance(results, Commit)
    turn.take_commit(results)
    assert run_step(turn, SEND.name).calls[0].refusal is None
