"""``agentic-rag models``: test the configured models and show their prices.

The commands need neither server nor data folder: they read the settings and the files of providers, profiles and prices
that a server would read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from agentic_rag.base.json_form import to_json
from agentic_rag.base.redaction import Redactor
from agentic_rag.commands.line import AsJson, say, settings_of, table
from agentic_rag.models.model_checks import CALL_SECONDS, AbilityResult, check_model
from agentic_rag.models.profiles import profile_of
from agentic_rag.models.retirement import retirements_of

models_app = typer.Typer(help="Try the models that are set up.", no_args_is_help=True)


@models_app.command("check")
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Models, as domains name them; none: all that are set up.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each call may take.", min=0.1)] = CALL_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Ask each model for a sentence, a tool call, a citation and an image. Exit code 1: something does not work.

    Each model gets up to four tiny calls, billed as usual. A code says what is missing. A warning names
    each model that its service retires within 60 days.
    """
    from agentic_rag.store.clock import today

    checked = anyio.run(_check, names or [], seconds)
    if not checked:
        say("error: no language model is set up: see docs/providers.md", err=True)
        raise typer.Exit(1)
    rows = [_row(name, result) for name, results in checked for result in results]

    answer = [{"model": name, **to_json(result)} for name, results in checked for result in results]
    table(["model", "what", "", "code", "said"], rows, answer, as_json)
    for retirement in retirements_of([name for name, _ in checked], today()):
        say(f"warning: {retirement.text(today())}", err=True)
    if not all(result.works for _, results in checked for result in results):
        raise typer.Exit(1)


@models_app.command("prices")
def show_prices(
    file: Annotated[Path | None, typer.Argument(help="A file of prices; default: that of AGENTIC_RAG_PRICES.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a price list and show it. Exit code 2: the file has an error at the line named."""
    from agentic_rag.models.prices import read_prices

    path = file or settings_of().prices
    if path is None:
        say("error: name a file, or set AGENTIC_RAG_PRICES to one", err=True)
        raise typer.Exit(2)
    prices = read_prices(path)
    head = ("model", "from", "input", "cache read", "cache write", "output", "for a million tokens")
    rows = [
        (name, price.since or "-", *map(str, (price.input, price.cache_read, price.cache_write, price.output)))
        for name, listed in prices.by_name.items()
        for price in listed
    ]
    answer = [{"currency": prices.currency, **dict(zip(head, row, strict=False))} for row in rows]
    table(head, [(*row, prices.currency) for row in rows], answer, as_json)


async def _check(names: list[str], seconds: float) -> Sequence[tuple[str, Sequence[AbilityResult]]]:
    """Test the models concurrently; the calls of one model run one after the other."""
    from agentic_rag.models.provider_file import read_providers
    from agentic_rag.models.providers import choose_model, configured_models, secrets_of, use_profiles

    settings = settings_of()
    providers = read_providers(settings.providers)
    use_profiles(settings, providers)
    choice = choose_model(settings, providers)
    redact = Redactor(secrets_of(settings, providers))
    models = list(dict.fromkeys(map(choice.names.keep, names))) or configured_models(settings, choice, providers)
    by_model: dict[str, Sequence[AbilityResult]] = {}

    async def check_one(name: str) -> None:
        results = await check_model(choice.model, name, profile_of(name), seconds)
        by_model[name] = [
            AbilityResult(result.ability, result.code, redact(result.note), result.seconds) for result in results
        ]

    try:
        async with anyio.create_task_group() as checks:
            for name in models:
                checks.start_soon(check_one, name)
    finally:
        await choice.model.aclose()
    return [(name, by_model[name]) for name in models]


def _row(name: str, result: AbilityResult) -> list[str]:
    took = f"{result.seconds:.1f} s"
    note = f"{took}: {result.note}" if result.note else took
    return [name, str(result.ability), "works" if result.works else "FAILS", str(result.code or "-"), note]
