"""The error tree: complete, declared in few modules, and readable by people and programs."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import get_type_hints

import agentic_rag
from agentic_rag.base import budget_errors, bundle_errors, errors, startup_errors
from agentic_rag.base.errors import AgenticRagError, NotFound, RequestRefused, TurnInProgress
from agentic_rag.base.json_form import Json
from agentic_rag.domains import component_errors
from agentic_rag.tools import errors as server_errors
from agentic_rag.tools.oauth import errors as sign_in_errors

PLACES = {
    module.__name__
    for module in (
        errors,
        budget_errors,
        bundle_errors,
        startup_errors,
        sign_in_errors,
        component_errors,
        server_errors,
    )
}
"""Modules that declare errors."""
ENTRY = {"server": "a", "target": "b", "secrets": ["c"]}
SAMPLES = {int: 7, float: 1.5, bool: True, str: "abc", tuple[str, ...]: ("a", "b"), tuple[Json, ...]: (ENTRY,)}
UNTOLD = {
    "agentic_rag.archive.zips.ZipTooLarge",
    "agentic_rag.server.ws.connection.ConnectionGone",
    "agentic_rag.backup.program.ProgramFailed",
    "agentic_rag.bundles.contents.ContentChanged",
    "agentic_rag.store.engrams.TooMany",
    "agentic_rag.store.engrams.CannotReplace",
    "agentic_rag.store.engrams.NewerNumber",
    "agentic_rag.runtime.acceptance.IdBehind",
    "agentic_rag.tools.exchange.UnreadableAnswer",
    "agentic_rag.access.authorizations.GrantNotValid",
    "agentic_rag.access.oauth_clients.ClientRefused",
    "agentic_rag.server.doors.a2a.RpcError",
    "agentic_rag.sources.items.ItemGone",
    "agentic_rag.sources.runs.Superseded",
    "agentic_rag.tools.remote_tasks.UnreadableTask",
}
"""Exceptions that their callers handle, so that no user reads them."""
ABSTRACT = {"Conflict", "TurnError", "StorageError", "StartupError"}
"""Base classes that hold shared fields, and are not raised themselves."""


def all_subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from all_subclasses(subclass)


def declared_errors() -> list[type[AgenticRagError]]:
    kinds = {kind for kind in all_subclasses(AgenticRagError) if issubclass(kind, AgenticRagError)}
    return sorted(kinds, key=lambda kind: kind.__name__)


def sample(kind: type[AgenticRagError]) -> AgenticRagError:
    """Return an error built with a value for each parameter without a default."""
    hints = get_type_hints(kind)
    names = [name for name in kind.attributes if not hasattr(kind, name) or (kind, name) == (RequestRefused, "code")]
    return kind(**{name: SAMPLES[hints[name]] for name in names})


def test_every_exception_of_the_product_is_in_the_tree_or_stays_in_its_module() -> None:
    for module in pkgutil.walk_packages(agentic_rag.__path__, "agentic_rag."):
        if ".migrations" not in module.name:
            importlib.import_module(module.name)
    unlisted = {
        f"{kind.__module__}.{kind.__name__}"
        for kind in all_subclasses(BaseException)
        if kind.__module__.startswith("agentic_rag.") and kind.__module__ not in PLACES
    }
    public = {name for name in unlisted if not name.rpartition(".")[2].startswith("_")}
    public = {name for name in public if not name.startswith("agentic_rag.testing.")}  # errors of the fakes
    assert public == UNTOLD


def test_an_error_has_a_text_and_its_declared_attributes() -> None:
    for kind in declared_errors():
        error = sample(kind)
        assert (str(error).strip() != "") == (kind.__name__ not in {"Conflict", "TurnError", "StartupError"}), kind
        assert "self" not in str(error), kind
        assert 400 <= error.status < 600, kind
        assert all(hasattr(error, name) for name in (*error.facts, *error.attributes)), kind


def test_every_code_belongs_to_one_error() -> None:
    special = {
        *("PagesBusy", "TooManySubscriptions", "WorkspaceUnavailable", "UnusableSummary"),
        *("WritesRefused", "BeyondLog", "NoSignIn"),
    }
    """Special cases of their base class: they share its code and have their own text."""
    shared = {"RequestRefused", "InternalError", "UnreadableAttachment", *special, *ABSTRACT}
    """The server's own code, the default, and the code of a document that cannot be read."""
    codes = [sample(kind).code for kind in declared_errors() if kind.__name__ not in shared]
    assert len(codes) == len(set(codes))
    assert sample(NotFound).code == "ABC_NOT_FOUND"


def test_an_errors_parameters_are_taken_by_place_and_by_name() -> None:
    by_place, by_name = TurnInProgress("turn_1", "Later."), TurnInProgress(problem="Later.", turn_id="turn_1")
    assert (by_place.turn_id, str(by_place)) == (by_name.turn_id, str(by_name)) == ("turn_1", "Later.")
    assert by_place.args == ("turn_1", "Later.")
    assert TurnInProgress("turn_1").details == {"turnId": "turn_1"}
