"""The ids by which records refer to each other: text at runtime, distinct types for the type checker.

Owns the types alone. If a call swaps two ids of its parameters, it does not type-check. Ids from outside (a path, a
frame, a row) become one of these types where they are read.
"""

from typing import NewType

ConversationId = NewType("ConversationId", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
DocumentId = NewType("DocumentId", str)
WaitId = NewType("WaitId", str)

NO_CONVERSATION = ConversationId("")
"""The id for things that belong to no conversation."""
