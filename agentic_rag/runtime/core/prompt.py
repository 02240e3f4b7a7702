"""The bootstrap prompt: minimal, pure, and stable from turn to turn.

Owns the words a model gets before it has called anything: who it is, one line for each tool of ours that is
offered, style, tone and language. The role itself never stands here: it arrives
through a tool. Knows no store and no clock.
"""

from collections.abc import Collection

from agentic_rag.messages import Block, text_block
from agentic_rag.runtime.core.definition import Persona
from agentic_rag.tools.system import DELEGATE, SYSTEM_TOOLS


def bootstrap_prompt(persona: Persona, tools: Collection[str], sub_roles: Collection[str] = ()) -> tuple[Block, ...]:
    """Return the system blocks for one definition.

    Args:
        persona: whom the model plays; Chinese words for a ``zh*`` language, else English.
        tools: names of the tools in the request; a line is written only for a tool in it.
        sub_roles: role ids that the tool `DELEGATE` takes; named only when it is in ``tools``.
    """
    chinese = persona.language.lower().startswith("zh")
    tool_lines = _tool_lines(persona, tools, sub_roles, chinese=chinese)
    lines = _chinese(persona, tool_lines) if chinese else _english(persona, tool_lines)
    return (text_block("\n".join(lines)), *(text_block(part) for part in persona.components if part.strip()))


def _tool_lines(persona: Persona, tools: Collection[str], sub_roles: Collection[str], *, chinese: bool) -> list[str]:
    """Return a line for each tool of ours in the request that has one to say."""
    roles = ("、" if chinese else ", ").join(sub_roles)
    offered = [tool for tool in SYSTEM_TOOLS if tool.name in tools and (tool is not DELEGATE or sub_roles)]
    lines = [tool.chinese if chinese else tool.english for tool in sorted(offered, key=lambda tool: tool.prompt_order)]
    return [line.format(role=persona.role, roles=roles) for line in lines if line]


def _english(persona: Persona, tool_lines: list[str]) -> list[str]:
    lines = [f"You are the assistant of “{persona.name}”."]
    if persona.expertise:
        lines.append(f"Field: {persona.expertise}")
    lines += tool_lines
    if persona.language == "auto":
        lines.append("Answer in the language of the user's message.")
    else:
        lines.append(f"Answer in the language {persona.language}.")
    detail = "Give complete answers with the reasons." if persona.style == "detailed" else "Be brief."
    tone = "Friendly tone." if persona.tone == "friendly" else "Formal tone."
    return [*lines, f"{detail} {tone}"]


def _chinese(persona: Persona, tool_lines: list[str]) -> list[str]:
    lines = [f"你是“{persona.name}”的助手。"]
    if persona.expertise:
        lines.append(f"领域：{persona.expertise}")
    lines += tool_lines
    lines.append(f"请用中文（{persona.language}）回答。")
    detail = "回答要完整并说明理由。" if persona.style == "detailed" else "回答要简短。"
    tone = "语气友好。" if persona.tone == "friendly" else "语气正式。"
    return [*lines, detail + tone]
