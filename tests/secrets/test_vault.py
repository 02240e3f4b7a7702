"""The vault: a sealed value opens only for its own purpose, whatever happens to the file or the keys."""

import base64
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256, sha512
from pathlib import Path

import pytest
from pydantic import SecretStr

from agentic_rag.base.errors import NotFound, SecretUnreadable
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.domains.vault import Vault, rotate, seal, unseal
from agentic_rag.domains.vault_keys import FILE_NAME, Keyring, SealingKey, file_keys, parse_key, read_file, write_file
from agentic_rag.store import secrets
from agentic_rag.store.database import Database
from tests.databases import database_at

pytestmark = pytest.mark.attack(kind="secrets")

KEY, OTHER = SealingKey(os.urandom(32)), SealingKey(os.urandom(32))
VALUE = "sk-planted-0123456789"


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[Database]:
    database = await Database.open(database_at(folder / "agentic-rag.db"))
    try:
        yield database
    finally:
        await database.aclose()


def test_a_sealed_value_opens_only_in_its_place_and_differs_each_time() -> None:
    keys = Keyring((OTHER, KEY))
    first_seal, second_seal = seal(KEY, "dom_1", "TOKEN", VALUE), seal(KEY, "dom_1", "TOKEN", VALUE)
    assert first_seal != second_seal
    assert VALUE.encode() not in first_seal
    assert unseal(keys, "dom_1", "TOKEN", first_seal) == VALUE


@pytest.mark.parametrize(("domain", "name"), [("dom_2", "TOKEN"), ("dom_1", "OTHER"), ("dom_1|TOKEN", ""), ("", "")])
def test_a_row_copied_to_another_domain_or_name_is_refused(domain: str, name: str) -> None:
    with pytest.raises(SecretUnreadable) as refusal:
        unseal(Keyring((KEY,)), domain, name, seal(KEY, "dom_1", "TOKEN", VALUE))
    assert refusal.value.code == "SECRET_UNREADABLE"


def test_a_ciphertext_with_any_byte_flipped_or_cut_off_is_refused() -> None:
    sealed = seal(KEY, "dom_1", "TOKEN", VALUE)
    broken_values = [sealed[:index] + bytes([sealed[index] ^ 1]) + sealed[index + 1 :] for index in range(len(sealed))]
    broken_values += [sealed[:index] for index in range(len(sealed))] + [sealed + b"x"]
    for broken_value in broken_values:
        with pytest.raises(SecretUnreadable) as refusal:
            unseal(Keyring((KEY,)), "dom_1", "TOKEN", broken_value)
        assert VALUE not in str(refusal.value)


def test_a_value_sealed_with_a_missing_key_is_refused() -> None:
    with pytest.raises(SecretUnreadable, match="key"):
        unseal(Keyring((OTHER,)), "dom_1", "TOKEN", seal(KEY, "dom_1", "TOKEN", VALUE))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "x" * 64,
        "00" * 32,
        bytes(range(32)).hex(),
        base64.b64encode(b"correct horse battery staple 123").decode(),
        base64.b64encode(sha256(b"short").digest()[:16]).decode(),
        base64.b64encode(sha512(b"long").digest()).decode(),
        sha256(b"hex").hexdigest()[:-1] + "g",
    ],
)
def test_a_weak_or_malformed_key_is_a_configuration_error_that_shows_nothing_of_it(text: str) -> None:
    with pytest.raises(BadConfiguration) as refusal:
        parse_key(text, "AGENTIC_RAG_SECRET_KEY")
    assert refusal.value.setting == "AGENTIC_RAG_SECRET_KEY"
    assert len(text) < 3 or text not in str(refusal.value)


def test_a_key_is_read_from_hex_and_from_both_kinds_of_base64() -> None:
    data = KEY.data
    urlsafe = base64.urlsafe_b64encode(data).decode()
    for text in (data.hex(), data.hex().upper(), base64.b64encode(data).decode(), urlsafe, urlsafe.rstrip("=")):
        assert parse_key(f" {text}\n", "x") == KEY
    assert data.hex() not in repr(KEY)
    assert repr(data) not in repr(KEY)


def test_the_key_file_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    keyring = file_keys(tmp_path, make=True)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert file_keys(tmp_path, make=True).keys == keyring.keys
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_key_file_readable_by_others_or_a_link_is_refused(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    write_file(file, (KEY,))
    file.chmod(0o640)
    with pytest.raises(BadConfiguration, match="chmod 600"):
        file_keys(tmp_path, make=False)
    file.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o600)
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadConfiguration, match="cannot be read"):
        file_keys(tmp_path, make=False)


async def test_a_start_without_the_secrets_key_names_the_missing_key(tmp_path: Path) -> None:
    async with open_store(tmp_path) as database:
        vault = await Vault.open(database, tmp_path, None, Redactor())
        await vault.put("dom_1", "TOKEN", VALUE)
        (tmp_path / FILE_NAME).rename(tmp_path / "moved")
        with pytest.raises(BadConfiguration, match=r"secret\.key is missing"):
            await Vault.open(database, tmp_path, None, Redactor())
        assert not (tmp_path / FILE_NAME).exists()
        with pytest.raises(BadConfiguration, match="1 of 1 stored secrets"):
            await Vault.open(database, tmp_path, SecretStr(OTHER.data.hex()), Redactor())
        (tmp_path / "moved").rename(tmp_path / FILE_NAME)
        reopened = await Vault.open(database, tmp_path, SecretStr(OTHER.data.hex()), Redactor())
        assert await reopened.values("dom_1") == {"TOKEN": VALUE}


async def test_a_damaged_row_leaves_the_others_usable(tmp_path: Path) -> None:
    async with open_store(tmp_path) as database:
        vault = await Vault.open(database, tmp_path, None, Redactor())
        for name in ("A", "B", "C"):
            await vault.put("dom_1", name, f"{VALUE}-{name}")
        rows = {row.name: row for row in await database.read(lambda conn: secrets.of_domain(conn, "dom_1"))}
        await database.write(lambda conn: secrets.reseal(conn, rows["A"], rows["B"].sealed))
        await database.write(lambda conn: secrets.reseal(conn, rows["C"], rows["C"].sealed[:-1]))
        reopened = await Vault.open(database, tmp_path, None, Redactor())
        assert await reopened.values("dom_1") == {"A": None, "B": f"{VALUE}-B", "C": None}
        assert (await reopened.masks("dom_1"))["A"] == {"set": True}
        with pytest.raises(SecretUnreadable):
            reopened.unseal(rows["A"].replace(sealed=rows["B"].sealed))


async def test_only_long_secrets_show_their_last_four_characters(tmp_path: Path) -> None:
    async with open_store(tmp_path) as database:
        vault = await Vault.open(database, tmp_path, None, Redactor())
        assert await vault.put("dom_1", "SHORT", "elevenchars") == {"set": True}
        assert await vault.put("dom_1", "LONG", "twelve-chars") == {"set": True, "last4": "hars"}
        await vault.delete("dom_1", "SHORT")
        assert await vault.masks("dom_1") == {"LONG": {"set": True, "last4": "hars"}}
        with pytest.raises(NotFound, match="SHORT"):
            await vault.delete("dom_1", "SHORT")


async def test_a_key_rotation_seals_all_secrets_with_the_new_key_and_deletes_the_old(tmp_path: Path) -> None:
    async with open_store(tmp_path) as database:
        vault = await Vault.open(database, tmp_path, None, Redactor())
        for number in range(120):
            await vault.put("dom_1", f"S{number}", f"{VALUE}-{number}")
        (old_key,) = read_file(tmp_path / FILE_NAME)
        assert await rotate(database, tmp_path, None) == (120, 0)
        (new_key,) = read_file(tmp_path / FILE_NAME)
        assert new_key != old_key
        reopened = await Vault.open(database, tmp_path, None, Redactor())
        assert (await reopened.values("dom_1"))["S119"] == f"{VALUE}-119"


async def test_a_key_rotation_to_the_operators_key_leaves_only_that_key(tmp_path: Path) -> None:
    async with open_store(tmp_path) as database:
        await (await Vault.open(database, tmp_path, None, Redactor())).put("dom_1", "A", VALUE)
        new_setting = SecretStr(OTHER.data.hex())
        assert await rotate(database, tmp_path, new_setting) == (1, 0)
        assert not (tmp_path / FILE_NAME).exists()
        assert await (await Vault.open(database, tmp_path, new_setting, Redactor())).values("dom_1") == {"A": VALUE}
        with pytest.raises(BadConfiguration, match="new key first"):
            await rotate(database, tmp_path, new_setting)
        both_keys = SecretStr(f"{KEY.data.hex()},{OTHER.data.hex()}")
        assert await rotate(database, tmp_path, both_keys) == (1, 0)
        reopened = await Vault.open(database, tmp_path, SecretStr(KEY.data.hex()), Redactor())
        assert await reopened.values("dom_1") == {"A": VALUE}


async def test_secrets_of_a_lost_key_are_deleted_only_on_request(tmp_path: Path) -> None:
    async with open_store(tmp_path) as database:
        await (await Vault.open(database, tmp_path, None, Redactor())).put("dom_1", "A", VALUE)
        (tmp_path / FILE_NAME).unlink()
        with pytest.raises(BadConfiguration):
            await rotate(database, tmp_path, None)
        assert await rotate(database, tmp_path, None, drop_unreadable=True) == (0, 1)
        assert await (await Vault.open(database, tmp_path, None, Redactor())).values("dom_1") == {}


HALF_WAY = """
import asyncio, sys
from pathlib import Path
from agentic_rag.base import failpoints
from agentic_rag.store.database import Database
from agentic_rag.domains.vault import rotate

def stop(name):
    if name == "rotate.batch":
        print(name, flush=True)
        sys.stdin.read()

async def main():
    folder, place = Path(sys.argv[1]), sys.argv[2]
    with failpoints.heard_by(stop):
        await rotate(await Database.open(place if "://" in place else Path(place)), folder, None)

asyncio.run(main())
"""


def kill_during_rotation(folder: Path) -> None:
    command = [sys.executable, "-c", HALF_WAY, str(folder), str(database_at(folder / "agentic-rag.db"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"rotate.batch\n"
        child.send_signal(signal.SIGKILL)


async def test_a_killed_key_rotation_keeps_every_secret_readable_and_continues_later(tmp_path: Path) -> None:
    async with open_store(tmp_path) as database:
        vault = await Vault.open(database, tmp_path, None, Redactor())
        for number in range(120):
            await vault.put("dom_1", f"S{number}", f"{VALUE}-{number}")
    expected = {f"S{number}": f"{VALUE}-{number}" for number in range(120)}
    kill_during_rotation(tmp_path)
    async with open_store(tmp_path) as database:
        new, old = read_file(tmp_path / FILE_NAME)
        rows = await database.read(secrets.list_all)
        ids = [row.sealed[1:9] for row in rows]
        assert (ids.count(new.id), ids.count(old.id)) == (50, 70)
        half = await Vault.open(database, tmp_path, None, Redactor())
        assert await half.values("dom_1") == expected
        assert await rotate(database, tmp_path, None) == (70, 0)
        assert read_file(tmp_path / FILE_NAME) == [new]
        assert await (await Vault.open(database, tmp_path, None, Redactor())).values("dom_1") == expected


@pytest.mark.parametrize("content", ["", "\n", "c2hvcnQ=", "0" * 63])
def test_an_empty_or_truncated_key_file_is_named_with_the_remedy(tmp_path: Path, content: str) -> None:
    file = tmp_path / FILE_NAME
    file.touch(mode=0o600)
    file.write_text(content)
    with pytest.raises(BadConfiguration) as refusal:
        read_file(file)
    assert str(file) in str(refusal.value)
    assert "Put it back from a backup" in str(refusal.value)
    assert "openssl" not in str(refusal.value), "another key would open nothing"


def test_a_pipe_in_place_of_the_key_file_blocks_no_caller(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME, 0o600)
    with pytest.raises(BadConfiguration, match="must be a file"):
        read_file(tmp_path / FILE_NAME)
