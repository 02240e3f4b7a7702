"""The bootstrap prompt: minimal, pure, and stable from turn to turn.

Owns the words a model gets before it has called anything: who it is, which role to activate, one line for
each built-in tool that exists, style, tone and language. The role itself never stands here: it arrives
through ``promptx_action``. Knows no store and no clock.
"""

from collections.abc import Collection

from agentic_rag.messages import Block, text_block
from agentic_rag.runtime.core.definition import Persona

_EN_TOOLS = (
    ("promptx_recall", "promptx_recall: look into your memory before you answer."),
    (
        "promptx_remember",
        "promptx_remember: save what will matter in later conversations, and whatever you are told to.",
    ),
    (
        "search_documents",
        "search_documents: look up facts in the documents; cite what you use, and say so if nothing fits.",
    ),
    ("read_tool_result", "read_tool_result: read on in a long result by its ref."),
)
_ZH_TOOLS = (
    ("promptx_recall", "promptx_recall：回答之前先查看记忆。"),
    ("promptx_remember", "promptx_remember：保存以后对话用得到的内容，以及用户要求记住的内容。"),
    ("search_documents", "search_documents：在文档中查找事实；引用所用的内容，找不到就直说。"),
    ("read_tool_result", "read_tool_result：按 ref 继续阅读较长的结果。"),
)


def bootstrap_prompt(persona: Persona, tools: Collection[str], sub_roles: Collection[str] = ()) -> tuple[Block, ...]:
    """Return the system blocks for one definition.

    Args:
        persona: whom the model plays; Chinese words for a ``zh*`` language, else English.
        tools: names of the tools in the request; a line is written only for a tool in it.
        sub_roles: role ids that ``delegate`` takes; named only when ``delegate`` is in ``tools``.
    """
    chinese = persona.language.lower().startswith("zh")
    lines = _chinese(persona, tools, sub_roles) if chinese else _english(persona, tools, sub_roles)
    return (text_block("\n".join(lines)), *(text_block(part) for part in persona.components if part.strip()))


def _english(persona: Persona, tools: Collection[str], sub_roles: Collection[str]) -> list[str]:
    lines = [f"You are the assistant of “{persona.name}”."]
    if persona.expertise:
        lines.append(f"Field: {persona.expertise}")
    if "promptx_action" in tools:
        lines.append(
            f'At the start of a conversation activate your role: promptx_action with role "{persona.role}". '
            "Then act as it says."
        )
    if "delegate" in tools and sub_roles:
        lines.append(f"delegate: hand a self-contained task to one of the roles {', '.join(sub_roles)}.")
    lines += [line for name, line in _EN_TOOLS if name in tools]
    if persona.language == "auto":
        lines.append("Answer in the language of the user's message.")
    else:
        lines.append(f"Answer in the language {persona.language}.")
    detail = "Give complete answers with the reasons." if persona.style == "detailed" else "Be brief."
    tone = "Friendly tone." if persona.tone == "friendly" else "Formal tone."
    return [*lines, f"{detail} {tone}"]


def _chinese(persona: Persona, tools: Collection[str], sub_roles: Collection[str]) -> list[str]:
    lines = [f"你是“{persona.name}”的助手。"]
    if persona.expertise:
        lines.append(f"领域：{persona.expertise}")
    if "promptx_action" in tools:
        lines.append(f'对话开始时先激活角色：调用 promptx_action，role 为 "{persona.role}"，然后按其要求行事。')
    if "delegate" in tools and sub_roles:
        lines.append(f"delegate：把独立的任务交给以下角色之一：{'、'.join(sub_roles)}。")
    lines += [line for name, line in _ZH_TOOLS if name in tools]
    lines.append(f"请用中文（{persona.language}）回答。")
    detail = "回答要完整并说明理由。" if persona.style == "detailed" else "回答要简短。"
    tone = "语气友好。" if persona.tone == "friendly" else "语气正式。"
    return [*lines, detail + tone]
