"""``agentic-rag usage`` and ``agentic-rag budgets``: the cost of model calls, and its limits."""

from enum import StrEnum
from typing import Annotated

import typer

from agentic_rag.base.json_form import Json
from agentic_rag.commands.line import AsJson, Data, Url, quote_part, run, say, table

budgets_app = typer.Typer(help="List, set and remove budgets of domains, users and keys.", no_args_is_help=True)


class ScopeName(StrEnum):
    """The kind of subject that a budget applies to."""

    domain = "domain"
    user = "user"
    key = "key"


class UnitName(StrEnum):
    """The unit of a budget."""

    tokens = "tokens"
    money = "money"


class PeriodName(StrEnum):
    """The period after which a budget renews."""

    day = "day"
    month = "month"


def usage(
    by: Annotated[
        str, typer.Option(help="domain, user, key, model, agent, day, cacheMiss; join with commas.")
    ] = "domain",
    since: Annotated[str | None, typer.Option("--from", help="From this day on, UTC: 2026-01-31.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Before this day.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Show the tokens of model calls, and their cost if the operator set prices."""
    filters = {"groupBy": by, "from": since, "to": until, "format": "csv" if as_csv else None}
    params = {name: value for name, value in filters.items() if value}
    if as_csv:
        say(run(data, url, lambda client: client.call("GET", "/api/usage", params=params)).rstrip())
        return
    page = run(data, url, lambda client: client.call("GET", "/api/usage", params=params))
    names = [_GROUPS.get(group, group) for group in dict.fromkeys(filter(None, by.split(",")))]
    head = (*names, "calls", "input", "cache read", "cache write", "output", "cost")
    table(
        head,
        [(*(str(item.get(name, "")) for name in names), *_cells(item)) for item in page["items"]],
        page["items"],
        as_json,
    )


_BUDGET = ("id", "whose", "unit", "period", "spent", "reserved", "soft", "hard", "renews")
_GROUPS = {"domain": "domainId", "user": "userId", "key": "keyId"}


def _cells(total: Json) -> tuple[str, ...]:
    money = f"{total['cost']} {total['currency']}" if "cost" in total else "-"
    if total.get("unpricedCalls"):
        money += f" (and {total['unpricedCalls']} calls without a price)"
    tokens = [str(total[name]) for name in ("calls", "input", "cacheRead", "cacheWrite", "output")]
    return (*tokens, money)


@budgets_app.command("list")
def list_budgets(as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """List budgets: id, subject, unit, period, spent, reserved by running calls, soft and hard limit, renewal time."""
    page = run(data, url, lambda client: client.call("GET", "/api/budgets"))
    table(_BUDGET, [_row(item) for item in page["items"]], page["items"], as_json)


@budgets_app.command("set")
def set_budget(
    scope: Annotated[ScopeName, typer.Argument(help="Kind of the subject: domain, user or key.")],
    subject: Annotated[str, typer.Argument(help="Id or name of the subject; '*': a separate budget for each.")],
    unit: Annotated[UnitName, typer.Argument(help="The unit of the limit. Money needs AGENTIC_RAG_PRICES.")],
    period: Annotated[PeriodName, typer.Argument(help="The period, which starts at midnight UTC.")],
    hard: Annotated[str | None, typer.Option(help="Above this limit, model calls are refused.")] = None,
    soft: Annotated[str | None, typer.Option(help="Above this limit, each turn shows a warning.")] = None,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Set a budget. It replaces the budget with the same scope, subject, unit and period."""
    body: Json = {
        "scope": scope.value,
        "subject": subject,
        "unit": unit.value,
        "period": period.value,
        "soft": soft,
        "hard": hard,
    }
    stored_budget = run(data, url, lambda client: client.call("PUT", "/api/budgets", json=body))
    table(_BUDGET, [_row(stored_budget)], stored_budget, as_json)


@budgets_app.command("remove")
def remove_budget(
    budget_id: Annotated[str, typer.Argument(help="Id of the budget, as `budgets list` shows it.")],
    data: Data = None,
    url: Url = None,
) -> None:
    """Remove a budget. It limits no calls from now on."""
    run(data, url, lambda client: client.call("DELETE", f"/api/budgets/{quote_part(budget_id)}"))


def _row(budget: Json) -> tuple[str, ...]:
    money = f" {budget['currency']}" if budget.get("currency") else ""
    bounds = (budget.get("soft", "-"), budget.get("hard", "-"))
    used = (budget.get("spent", "-"), budget.get("reserved", "-"))
    subject = f"{budget['scope']} {budget['subject']}"
    return (
        budget["id"],
        subject,
        f"{budget['unit']}{money}",
        budget["period"],
        *used,
        *bounds,
        budget.get("renewsAt", "-"),
    )
