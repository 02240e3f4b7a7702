"""Questions and tasks of MCP servers that outlive a kill of the server process that relayed them."""

import json
import sys
from typing import Any

import pytest

from agentic_rag.testing.steps import Step, Use
from tests.faults.client import Chat
from tests.faults.ledger import Ledger, check_messages
from tests.faults.sweep import Rig
from tests.tools.servers.asking import STATE
from tests.tools.support import SERVERS


def make_asking_conversation(rig: Rig, era: str) -> str:
    """Create a domain with a server that asks, and return a conversation in it."""
    entry = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "asking.py"), era]}
    settings = {"mcpServers": {"desk": entry}, "toolPolicy": {"*": "allow"}}
    domain = rig.server.call("POST", "/api/domains", {"name": f"desk {era}", "settings": settings})["id"]
    return rig.server.conversation(str(domain))


def open_wait(rig: Rig, conversation: str) -> Any:
    """Return the only open wait of a conversation."""
    (wait,) = rig.server.call("GET", f"/api/waits?state=open&conversationId={conversation}")["items"]
    return wait


@pytest.mark.parametrize("era", ["new", "old"])
def test_a_servers_question_survives_a_kill_if_the_server_can_be_called_again(rig: Rig, era: str) -> None:
    conversation, ledger = make_asking_conversation(rig, era), Ledger()
    with Chat(rig.server, conversation, ledger) as chat:
        turn = chat.send(f"Go {conversation} ask", conversation)["turnId"]
        question = chat.until(lambda event: event["type"] == "input_required")
        rig.server.kill()
    rig.server.start()
    assert (question["kind"], question["server"], question["message"]) == ("form", "desk", "Who are you?")
    if era == "new":
        assert open_wait(rig, conversation)["id"] == question["waitId"]
        answer = {"action": "accept", "content": {"name": "Ann"}}
        assert rig.server.call("POST", f"/api/waits/{question['waitId']}", answer)["state"] == "accepted"
    events = ledger.check_log(rig.server.log(turn))
    assert events[-1]["type"] == "done"
    check_messages(rig.server.messages(conversation), [(turn, events)])
    (answer_event,) = [event for event in events if event["type"] == "input_answered"]
    (result,) = [event for event in events if event["type"] == "tool_result"]
    if era == "new":
        assert (answer_event["action"], result["status"]) == ("accept", "ok")
        tool_answer = json.loads(result["content"])
        assert tool_answer == {"responses": {"q0": {"action": "accept", "content": {"name": "Ann"}}}, "state": STATE}
    else:  # its connection is lost, and the server's action is unknown
        assert (answer_event["action"], result["status"]) == ("cancel", "error")
        assert "unknown" in result["content"]


def test_a_task_outlives_a_kill_and_its_call_is_not_repeated(rig: Rig) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "tasks.py"), "effects"]}
    settings = {"mcpServers": {"shop": entry}, "toolPolicy": {"*": "allow"}}
    domain = rig.server.call("POST", "/api/domains", {"name": "shop", "settings": settings})["id"]
    conversation, ledger = rig.server.conversation(str(domain)), Ledger()
    rig.outside.first_steps[conversation] = Step((Use("shop__outlast", {}),))
    with Chat(rig.server, conversation, ledger) as chat:
        turn = chat.send(f"Go {conversation} first", conversation)["turnId"]
        chat.until(lambda event: event["type"] == "tool_progress")
        rig.server.kill()
    rig.server.start()
    events = ledger.check_log(rig.server.log(turn))
    assert events[-1]["type"] == "done"
    check_messages(rig.server.messages(conversation), [(turn, events)])
    (result,) = [event for event in events if event["type"] == "tool_result"]
    assert result["status"] == "ok"
    assert json.loads(result["content"])["built by"] == ["outlast"], "the call was made once"


def test_an_a2a_task_survives_a_kill_and_its_message_is_answered_once(rig: Rig) -> None:
    domain = rig.server.call("POST", "/api/domains", {"name": "agent"})["id"]
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "Go a2a slow"}]}
    params = {"message": message, "configuration": {"returnImmediately": True}}

    def call(method: str, params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return rig.server.call("POST", f"/a2a/{domain}", body)["result"]

    task = call("SendMessage", params)["task"]
    rig.server.kill()
    rig.server.start()
    assert call("SendMessage", params)["task"]["id"] == task["id"]
    assert json.loads(rig.server.log(task["id"])[-1])["type"] == "done"
    task_state = call("GetTask", {"id": task["id"]})
    assert task_state["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(task_state["artifacts"][0]["parts"][0]["text"]) > 100
    assert call("ListTasks", {})["totalSize"] == 1
