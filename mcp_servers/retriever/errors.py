"""The retriever's error tree: each error declares its data, and `__str__` makes the text.

    RetrieverError
    ├── DocumentError        one file could not be turned into text; `code` is the kind of failure
    ├── IndexFault
    │   ├── IndexOwned       another process holds the index folder
    │   ├── IndexClosed      used after `aclose`
    │   ├── IndexUnavailable the engine or the Qdrant server refused or did not answer
    │   │   └── IndexDamaged a collection on disk cannot be read; it was quarantined
    │   └── IndexMismatch    vectors do not fit the embedder or dimension of the collection
    ├── ExtensionBroken      an installed extension cannot be used
    ├── UnknownDocument      a search named a document that the caller cannot see, or that does not exist
    ├── UnreadableRequest    a place or pattern that a document does not have
    └── EmbeddingError
        ├── ModelMissing     weights are not on this machine
        │   ├── ModelUnknown fastembed has no model of this name
        │   └── ModelBroken  weights are here, but cannot be loaded
        ├── FetchFailed      weights could not be downloaded
        └── EmbedderFailed   the model or its endpoint gave no usable vectors

The errors know nothing of HTTP status codes or MCP; the routes and tools map them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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


MISSING_FILE = "the file is not in the documents folder any more"

MAX_SHOWN_NAME = 200
ADVICE: Mapping[DocumentCode, str] = {
    "DOCUMENT_UNSUPPORTED": "",  # the reason itself names the supported formats
    "DOCUMENT_EMPTY": "Upload a file that contains text.",
    "DOCUMENT_ENCRYPTED": "Remove the protection and upload the file again.",
    "DOCUMENT_SCANNED": "Upload a version with a text layer, or have its scans read with OCR.",
    "DOCUMENT_TOO_LARGE": "Split the file and upload its parts.",
    "DOCUMENT_BROKEN": "Open it in the program that wrote it, save it again, and upload the new file.",
    "DOCUMENT_MISSING": "Put it back, or delete the document.",
    "DOCUMENT_TIMEOUT": "Try again, or split the file and upload its parts.",
}
"""What the uploader can do, by the kind of failure."""


class RetrieverError(Exception):
    """Base class of the errors of this package."""


@dataclass(eq=False)
class DocumentError(RetrieverError):
    """A file that cannot be ingested.

    ``message``: the reason in plain words, without the file's name. ``detail``: a library's exception, for the log.
    """

    code: DocumentCode
    message: str
    detail: str = ""

    def __str__(self) -> str:
        return self.message

    def sentence(self, name: str) -> str:
        """Return the text for the uploader: the file's name, the reason, and what to do."""
        shown = name if len(name) <= MAX_SHOWN_NAME else f"{name[: MAX_SHOWN_NAME - 1]}…"
        return f'"{shown}" was not read: {self.message}. {ADVICE[self.code]}'.strip()


class IndexFault(RetrieverError):
    """Base class of index errors."""


@dataclass(eq=False)
class IndexOwned(IndexFault):
    """Another process holds the folder's lock; ``owner`` names the process, if it is known."""

    folder: str
    owner: str

    def __str__(self) -> str:
        return (
            f"the index {self.folder} is in use by {self.owner}; ask the running server instead "
            "(RETRIEVER_URL and RETRIEVER_TOKEN) or stop that process first"
        )


class IndexClosed(IndexFault):
    def __str__(self) -> str:
        return "the index is closed"


@dataclass(eq=False)
class IndexUnavailable(IndexFault):
    """The index refused or did not answer. ``reason`` is the engine's error text, for the log; the cause is chained."""

    action: str
    reason: str

    def __str__(self) -> str:
        return f"the index could not {self.action}: {self.reason}"


@dataclass(eq=False)
class IndexDamaged(IndexUnavailable):
    """A collection on disk is unreadable: its files were moved to ``place``, and the collection no longer exists."""

    place: str

    def __str__(self) -> str:
        return f"the index could not {self.action}: it is damaged ({self.reason}) and was moved to {self.place}"


@dataclass(eq=False)
class IndexMismatch(IndexFault):
    """Vectors have another embedder or dimension than the collection."""

    what: str
    recorded: object
    given: object

    def __str__(self) -> str:
        return f"the collection records {self.what} {self.recorded!r}, not {self.given!r}: rebuild it to change that"


@dataclass(eq=False)
class UnknownDocument(RetrieverError):
    """No document, or more than one, has this name. ``names`` are matching documents, or else some that exist.

    A model reads the error text.
    """

    document: str
    names: list[str]

    def __str__(self) -> str:
        known = "; ".join(self.names) or "none"
        return f"there is no one document called {self.document!r}. Documents: {known}."


@dataclass(eq=False)
class UnreadableRequest(RetrieverError):
    """A request names a place or pattern that the document lacks. ``reason`` tells the model how to correct it."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False)
class ExtensionBroken(RetrieverError):
    """An extension cannot be used. ``extension`` names the extension and its package; ``reason`` is one line."""

    extension: str
    reason: str

    def __str__(self) -> str:
        return f"the extension {self.extension} cannot be used: {self.reason}"


class EmbeddingError(RetrieverError):
    """Base class of embedder errors."""


@dataclass(eq=False)
class ModelMissing(EmbeddingError):
    model: str

    def __str__(self) -> str:
        return f"the model {self.model!r} is not on this machine"


class ModelUnknown(ModelMissing):
    def __str__(self) -> str:
        return f"fastembed knows no model called {self.model!r}"


@dataclass(eq=False)
class ModelBroken(ModelMissing):
    reason: str

    def __str__(self) -> str:
        return f"the model {self.model!r} cannot be loaded: {self.reason}"


@dataclass(eq=False)
class FetchFailed(EmbeddingError):
    model: str
    reason: str

    def __str__(self) -> str:
        return f"the model {self.model!r} could not be fetched: {self.reason}"


@dataclass(eq=False)
class EmbedderFailed(EmbeddingError):
    embedder: str
    reason: str

    def __str__(self) -> str:
        return f"embedder {self.embedder!r} failed: {self.reason}"
