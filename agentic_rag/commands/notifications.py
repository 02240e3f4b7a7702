"""``agentic-rag endpoints`` and ``agentic-rag schedules``: notifications, and prompts at set times."""

from typing import Annotated

import typer

from agentic_rag.base.json_form import Json
from agentic_rag.commands.line import AsJson, Data, Url, quote_part, run, say, table

endpoints_app = typer.Typer(help="Endpoints that receive notifications.", no_args_is_help=True)
schedules_app = typer.Typer(help="Prompts that are sent at set times or by a webhook.", no_args_is_help=True)

OfDomain = Annotated[str, typer.Option("--domain", help="Id of the domain; without it, the server's endpoints.")]
Domain = Annotated[str, typer.Option("--domain", help="Id of the domain.", show_default=False)]
EndpointId = Annotated[str, typer.Argument(help="Id of the endpoint, as `endpoints list` shows it.")]
ScheduleId = Annotated[str, typer.Argument(help="Id of the schedule, as `schedules list` shows it.")]

_ENDPOINT = ("id", "name", "channel", "address", "events", "state", "pending", "parked")
_SCHEDULE = ("id", "name", "when", "zone", "owner", "state", "next")


@endpoints_app.command("list")
def list_endpoints(domain: OfDomain = "", as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """List endpoints: id, name, channel, address, events, state, pending and parked notifications."""
    page = run(data, url, lambda client: client.call("GET", _endpoints(domain)))
    table(_ENDPOINT, [_endpoint_row(item) for item in page["items"]], page["items"], as_json)


@endpoints_app.command("add")
def add_endpoint(
    name: Annotated[str, typer.Argument(help="Name that people see.")],
    address: Annotated[str, typer.Argument(help="The https address, or a mail address with --channel mail.")],
    events: Annotated[str, typer.Option(help="Event kinds with commas: wait.created,turn.failed.")],
    channel: Annotated[str, typer.Option(help="webhook, slack, teams, feishu, dingtalk, wecom or mail.")] = "webhook",
    texts: Annotated[bool, typer.Option("--texts", help="Include texts, not only ids and states.")] = False,
    recipient: Annotated[str, typer.Option(help="User who gets links to answer waits.")] = "",
    domain: OfDomain = "",
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Add an endpoint. The signing secret of a webhook is printed once."""
    body: Json = {
        "name": name,
        "channel": channel,
        ("address" if channel == "mail" else "url"): address,
        "events": [event.strip() for event in events.split(",") if event.strip()],
        "withTexts": texts,
        "recipient": recipient,
    }
    created = run(data, url, lambda client: client.call("POST", _endpoints(domain), json=body))
    table(_ENDPOINT, [_endpoint_row(created)], created, as_json)
    if created.get("secret") and not as_json:
        say(f"Signing secret, shown only now: {created['secret']}")


@endpoints_app.command("remove")
def remove_endpoint(endpoint: EndpointId, domain: OfDomain = "", data: Data = None, url: Url = None) -> None:
    """Remove an endpoint with its notifications. Links that it sent are invalid from now on."""
    run(data, url, lambda client: client.call("DELETE", f"{_endpoints(domain)}/{quote_part(endpoint)}"))


@endpoints_app.command("test")
def send_test(endpoint: EndpointId, domain: OfDomain = "", data: Data = None, url: Url = None) -> None:
    """Queue a test message for an endpoint. A running server sends it."""
    path = f"{_endpoints(domain)}/{quote_part(endpoint)}/test"
    say(run(data, url, lambda client: client.call("POST", path))["deliveryId"])


@endpoints_app.command("deliveries")
def list_deliveries(
    endpoint: EndpointId,
    state: Annotated[str, typer.Option(help="pending, delivered or parked.")] = "",
    domain: OfDomain = "",
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """List the notifications of an endpoint, newest first: id, event, state, attempts, error, time."""
    params = {"limit": "500"} | ({"state": state} if state else {})
    path = f"{_endpoints(domain)}/{quote_part(endpoint)}/deliveries"
    page = run(data, url, lambda client: client.call("GET", path, params=params))
    rows = [
        (item["id"], item["kind"], item["state"], str(item["attempts"]), item["problem"] or "-", item["createdAt"])
        for item in page["items"]
    ]
    table(("id", "event", "state", "attempts", "problem", "created"), rows, page["items"], as_json)


@endpoints_app.command("replay")
def replay_deliveries(
    endpoint: EndpointId,
    delivery: Annotated[str, typer.Option(help="Id of one notification; without it, all parked ones.")] = "",
    domain: OfDomain = "",
    data: Data = None,
    url: Url = None,
) -> None:
    """Send parked notifications again, with the same ids."""
    path = f"{_endpoints(domain)}/{quote_part(endpoint)}"
    path += f"/deliveries/{quote_part(delivery)}/replay" if delivery else "/replay"
    say(f"{run(data, url, lambda client: client.call('POST', path))['count']} queued")


@schedules_app.command("list")
def list_schedules(domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None) -> None:
    """List schedules: id, name, cron or webhook, time zone, owner, state, next time."""
    page = run(data, url, lambda client: client.call("GET", _schedules(domain)))
    table(_SCHEDULE, [_schedule_row(item) for item in page["items"]], page["items"], as_json)


@schedules_app.command("add")
def add_schedule(
    name: Annotated[str, typer.Argument(help="A name, unique in the domain.")],
    prompt: Annotated[str, typer.Argument(help="The message that is sent.")],
    domain: Domain,
    cron: Annotated[
        str, typer.Option(help="Five cron fields: '0 7 * * MON'; without them, a webhook starts the prompt.")
    ] = "",
    zone: Annotated[str, typer.Option(help="Time zone: Europe/Berlin.")] = "UTC",
    role: Annotated[str, typer.Option(help="Id of the role that answers.")] = "",
    tools: Annotated[str, typer.Option(help="Tools that run without approval, with commas.")] = "",
    max_tokens: Annotated[int | None, typer.Option(help="Tokens that one run may use.")] = None,
    endpoint: Annotated[str, typer.Option(help="Id of an endpoint that also gets the answer.")] = "",
    catch_up: Annotated[str, typer.Option(help="Missed times: skip, once or all.")] = "once",
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
) -> None:
    """Add a schedule. The signing secret of a webhook is printed once."""
    body: Json = {
        "name": name,
        "prompt": prompt,
        "cron": cron,
        "timeZone": zone,
        "role": role,
        "allowedTools": [tool.strip() for tool in tools.split(",") if tool.strip()],
        "maxTokens": max_tokens,
        "endpointId": endpoint,
        "catchUp": catch_up,
    }
    created = run(data, url, lambda client: client.call("POST", _schedules(domain), json=body))
    table(_SCHEDULE, [_schedule_row(created)], created, as_json)
    if created.get("secret") and not as_json:
        say(f"Webhook: POST {created['trigger']}")
        say(f"Signing secret, shown only now: {created['secret']}")


@schedules_app.command("pause")
def pause_schedule(
    schedule: ScheduleId, domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None
) -> None:
    """Pause a schedule."""
    _switch(schedule, domain, data, url, enabled=False, as_json=as_json)


@schedules_app.command("resume")
def resume_schedule(
    schedule: ScheduleId, domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None
) -> None:
    """Resume a schedule. Times that passed while it was paused do not fire."""
    _switch(schedule, domain, data, url, enabled=True, as_json=as_json)


@schedules_app.command("run")
def run_schedule(schedule: ScheduleId, domain: Domain, data: Data = None, url: Url = None) -> None:
    """Run a schedule now. A running server does the run."""
    path = f"{_schedules(domain)}/{quote_part(schedule)}/run"
    say(run(data, url, lambda client: client.call("POST", path))["id"])


@schedules_app.command("runs")
def list_runs(
    schedule: ScheduleId, domain: Domain, as_json: AsJson = False, data: Data = None, url: Url = None
) -> None:
    """List the runs of a schedule, newest first: id, time, state, conversation, error."""
    path = f"{_schedules(domain)}/{quote_part(schedule)}/firings"
    page = run(data, url, lambda client: client.call("GET", path))
    rows = [
        (item["id"], item["slot"], item["state"], item["conversationId"] or "-", item["detail"] or "-")
        for item in page["items"]
    ]
    table(("id", "time", "state", "conversation", "detail"), rows, page["items"], as_json)


@schedules_app.command("remove")
def remove_schedule(schedule: ScheduleId, domain: Domain, data: Data = None, url: Url = None) -> None:
    """Remove a schedule and the list of its runs. Conversations stay."""
    run(data, url, lambda client: client.call("DELETE", f"{_schedules(domain)}/{quote_part(schedule)}"))


def _switch(schedule: str, domain: str, data: Data, url: Url, *, enabled: bool, as_json: bool) -> None:
    path = f"{_schedules(domain)}/{quote_part(schedule)}"
    changed = run(data, url, lambda client: client.call("PATCH", path, json={"enabled": enabled}))
    table(_SCHEDULE, [_schedule_row(changed)], changed, as_json)


def _endpoints(domain: str) -> str:
    return f"/api/domains/{quote_part(domain)}/endpoints" if domain else "/api/endpoints"


def _schedules(domain: str) -> str:
    return f"/api/domains/{quote_part(domain)}/schedules"


def _endpoint_row(endpoint: Json) -> tuple[str, ...]:
    state = "on" if endpoint["enabled"] else "off"
    if endpoint["problem"]:
        state += f" ({endpoint['problem']})"
    cells = (endpoint["id"], endpoint["name"], endpoint["channel"], endpoint["address"] or "-")
    return (*cells, ",".join(endpoint["events"]), state, str(endpoint["pending"]), str(endpoint["parked"]))


def _schedule_row(schedule: Json) -> tuple[str, ...]:
    state = "on" if schedule["enabled"] else "off"
    if schedule["problem"]:
        state += f" ({schedule['problem']})"
    when = schedule["cron"] or "webhook"
    cells = (schedule["id"], schedule["name"], when, schedule["timeZone"], schedule["ownerId"])
    return (*cells, state, schedule["nextAt"] or "-")
