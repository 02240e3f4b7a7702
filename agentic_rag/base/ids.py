"""The ids that records refer to each other by: text to a reader, a type each to the type checker.

Owns the types alone. Where two ids meet in a signature, a call that takes one for the other does not type-check. What
comes from outside (a path, a frame, a row) becomes one of these at the border that reads it.
"""

from typing import NewType

ConversationId = NewType("ConversationId", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
DocumentId = NewType("DocumentId", str)
WaitId = NewType("WaitId", str)

NO_CONVERSATION = ConversationId("")
"""Of what belongs to none."""
