"""The retriever's error tree; constructors take data, `__str__` makes the text.

    RetrieverError
    ├── DocumentError        one file could not be turned into text; `code` says which way
    ├── IndexFault
    │   ├── IndexOwned       another process holds the index folder
    │   ├── IndexClosed      used after `aclose`
    │   ├── IndexUnavailable the engine or the Qdrant server refused or did not answer
    │   └── IndexMismatch    vectors do not fit what the collection records
    ├── UnknownDocument      a search named a document that the caller cannot see or that is not there
    └── EmbeddingError
        ├── ModelMissing     weights are not on this machine
        │   ├── ModelUnknown fastembed has no model of this name
        │   └── ModelBroken  weights are here, but cannot be loaded
        ├── FetchFailed      weights could not be downloaded
        └── EmbedderFailed   the model or its endpoint gave no usable vectors

It knows nothing of HTTP status codes or of MCP: the edges map these.
"""

from typing import Literal

DocumentCode = Literal[
    "DOCUMENT_UNSUPPORTED",
    "DOCUMENT_EMPTY",
    "DOCUMENT_ENCRYPTED",
    "DOCUMENT_SCANNED",
    "DOCUMENT_TOO_LARGE",
    "DOCUMENT_BROKEN",
    "DOCUMENT_MISSING",
    "DOCUMENT_TIMEOUT",
]


MISSING_FILE = "the file is not in the documents folder any more; put it back, or delete the document"


class RetrieverError(Exception):
    """Base of everything this package raises on purpose."""


class DocumentError(RetrieverError):
    """A file that cannot be ingested. `message` is a sentence an uploader understands."""

    def __init__(self, code: DocumentCode, message: str) -> None:
        self.code: DocumentCode = code
        self.message = message
        super().__init__(code, message)

    def __str__(self) -> str:
        return self.message


class IndexFault(RetrieverError):
    """Base of index errors."""


class IndexOwned(IndexFault):
    """The folder's lock is held; `owner` names the process that holds it, as far as it is known."""

    def __init__(self, folder: str, owner: str) -> None:
        self.folder = folder
        self.owner = owner
        super().__init__(folder, owner)

    def __str__(self) -> str:
        return (
            f"the index {self.folder} is in use by {self.owner}; ask the running server instead "
            "(RETRIEVER_URL and RETRIEVER_TOKEN) or stop that process first"
        )


class IndexClosed(IndexFault):
    def __str__(self) -> str:
        return "the index is closed"


class IndexUnavailable(IndexFault):
    """The engine's own words, kept for the log; the cause is chained."""

    def __init__(self, action: str, reason: str) -> None:
        self.action = action
        self.reason = reason
        super().__init__(action, reason)

    def __str__(self) -> str:
        return f"the index could not {self.action}: {self.reason}"


class IndexMismatch(IndexFault):
    """Vectors of one embedder or dimension met a collection built with another."""

    def __init__(self, what: str, recorded: object, given: object) -> None:
        self.what = what
        self.recorded = recorded
        self.given = given
        super().__init__(what, recorded, given)

    def __str__(self) -> str:
        return f"the collection records {self.what} {self.recorded!r}, not {self.given!r}: rebuild it to change that"


class UnknownDocument(RetrieverError):
    """`names` are documents it could have meant, else some of those there are; a model reads the text."""

    def __init__(self, document: str, names: list[str]) -> None:
        self.document = document
        self.names = names
        super().__init__(document, names)

    def __str__(self) -> str:
        known = "; ".join(self.names) or "none"
        return f"there is no one document called {self.document!r}. Documents: {known}. Leave it out to search all."


class EmbeddingError(RetrieverError):
    """Base of embedder errors."""


class ModelMissing(EmbeddingError):
    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(model)

    def __str__(self) -> str:
        return f"the model {self.model!r} is not on this machine"


class ModelUnknown(ModelMissing):
    def __str__(self) -> str:
        return f"fastembed knows no model called {self.model!r}"


class ModelBroken(ModelMissing):
    def __init__(self, model: str, reason: str) -> None:
        super().__init__(model)
        self.reason = reason

    def __str__(self) -> str:
        return f"the model {self.model!r} cannot be loaded: {self.reason}"


class FetchFailed(EmbeddingError):
    def __init__(self, model: str, reason: str) -> None:
        self.model = model
        self.reason = reason
        super().__init__(model, reason)

    def __str__(self) -> str:
        return f"the model {self.model!r} could not be fetched: {self.reason}"


class EmbedderFailed(EmbeddingError):
    def __init__(self, embedder: str, reason: str) -> None:
        self.embedder = embedder
        self.reason = reason
        super().__init__(embedder, reason)

    def __str__(self) -> str:
        return f"embedder {self.embedder!r} failed: {self.reason}"
