"""What a change of a prompt component is refused with.

Owns its code, status and words, as `errors` does for what everyone raises.
"""

from agentic_rag.errors import Conflict


class ComponentChanged(Conflict, code="COMPONENT_CHANGED"):
    """A prompt component is another than the one that was read before it was changed."""

    name: str
    text = "{self.name} was changed, made or deleted since it was read. Read it again and repeat the change."
