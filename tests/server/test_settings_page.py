"""The pages that are generated from the code are up to date, and every setting has a description."""

from agentic_rag.base.settings import Settings
from tests import command_page
from tests.settings_page import PAGE, docs_of_fields, make_page


def test_every_setting_has_a_description() -> None:
    assert [name for name in Settings.model_fields if len(docs_of_fields().get(name, "")) < 10] == []


def test_the_settings_page_matches_the_settings_class() -> None:
    assert PAGE.read_text(encoding="utf-8") == make_page(), "write it anew: scripts/write_settings"


def test_the_page_of_commands_is_up_to_date() -> None:
    assert command_page.PAGE.read_text(encoding="utf-8") == command_page.make_page(), "run scripts/write_commands"
