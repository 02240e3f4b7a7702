"""The error for a refused change of a prompt component."""

from agentic_rag.base.errors import Conflict


class ComponentChanged(Conflict, code="COMPONENT_CHANGED"):
    """A prompt component differs from the version that the client read before the change."""

    name: str
    text = "{self.name} was changed, made or deleted since it was read. Read it again and repeat the change."
