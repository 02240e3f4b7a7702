"""Generate any number of tools with the length of real servers' tools: about 165 tokens each."""

from itertools import islice, product

from agentic_rag.base.json_form import Json
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.listing import user_name

SERVERS = ("helpdesk", "calendar", "files", "crm", "wiki", "billing", "repo", "mail", "metrics", "warehouse")
VERBS = {
    "list": "List {noun}s, newest first. Filter them by text, by state and by who owns them, page by page",
    "get": "Get one {noun} by its id, with its fields, its comments and the history of its changes",
    "create": "Create a {noun}. Give it a title that says what it is about; everything else can be changed later",
    "update": "Update fields of a {noun}. Fields that are left out stay as they are; returns the {noun} as it is then",
    "delete": "Delete a {noun} for good. It cannot be brought back, and what refers to it refers to nothing then",
}
NOUNS = ("ticket", "event", "document", "customer", "page", "invoice", "branch", "message", "dashboard", "parcel")


def many_tools(count: int) -> tuple[ToolInfo, ...]:
    """Return ``count`` tools of users' servers, sorted by name. Each server has at most fifty."""
    combinations = islice(product(NOUNS, SERVERS, VERBS), count)
    return tuple(sorted((_tool(server, verb, noun) for noun, server, verb in combinations), key=lambda tool: tool.name))


def _tool(server: str, verb: str, noun: str) -> ToolInfo:
    name = f"{verb}_{noun}"
    return ToolInfo(
        name=user_name(server, name),
        remote_name=name,
        server=server,
        origin="user",
        description=f"{VERBS[verb].format(noun=noun)} ({server}).",
        input_schema=_schema(verb, noun),
        claims_read_only=True,
    )


def _schema(verb: str, noun: str) -> Json:
    ident: Json = {"type": "string", "description": f"Id of the {noun}, as a list shows it."}
    text: Json = {"type": "string", "description": f"Words that the {noun} holds."}
    state: Json = {"type": "string", "enum": ["open", "waiting", "closed"], "description": "Its state."}
    limit: Json = {"type": "integer", "minimum": 1, "maximum": 100, "description": "How many at most, 20 if left out."}
    fields_by_verb: dict[str, Json] = {
        "list": {"query": text, "state": state, "owner": {"type": "string"}, "limit": limit},
        "get": {"id": ident, "with_comments": {"type": "boolean", "description": "Whether to add the comments."}},
        "create": {"title": {"type": "string"}, "body": text, "state": state, "labels": {"type": "array"}},
        "update": {"id": ident, "title": {"type": "string"}, "body": text, "state": state},
        "delete": {"id": ident, "reason": {"type": "string", "description": "Kept in the log."}},
    }
    fields = fields_by_verb[verb]
    return {"type": "object", "properties": fields, "required": list(fields)[:1], "additionalProperties": False}
