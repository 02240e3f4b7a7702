"""Damage one file of an index or of the stored results, start the server, and look for the file's content.

A `Trial` is one file and one kind of damage. The server must start. A search that misses an existing document must say
that the index is being rebuilt or cannot answer. In the end the search finds each document with its own words. Reading
a stored result returns its original content or nothing.
"""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import anyio

from agentic_rag.access.users import LOCAL
from agentic_rag.base.ids import ConversationId
from agentic_rag.store import payloads
from agentic_rag.store.clock import new_id
from agentic_rag.store.payloads import PayloadFiles
from tests.server.rig import Rig
from tests.waiting import pause

KINDS = ("empty", "half", "flipped", "gone")
DOCUMENTS = 12
PASSAGES = 8
SECONDS = 60.0
"""Time limit for a search to find lost content again."""


@dataclass(frozen=True)
class Trial:
    """Damage to one file. ``file`` is relative to the data folder."""

    file: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} {self.file}"


@dataclass(frozen=True)
class Ground:
    """A data folder of a stopped server, and its expected content."""

    folder: Path
    domain: str
    ref: str
    result: bytes

    def trials(self) -> Iterator[Trial]:
        data = self.folder / "data"
        for place in ("index", "payloads"):
            for file in sorted((data / place).rglob("*")):
                if file.is_file() and file.stat().st_size:
                    yield from (Trial(str(file.relative_to(data)), kind) for kind in KINDS)


def word(document: int, passage: int) -> str:
    """Return a word that occurs in one passage only."""
    return "w" + hashlib.sha256(f"{document}/{passage}".encode()).hexdigest()[:12].translate(
        str.maketrans("0123456789", "ghijklmnop")
    )


def text_of(document: int) -> bytes:
    return "".join(
        f"# Part {passage}\n\n{'The part has its own word. ' * 40}It is {word(document, passage)}.\n\n"
        for passage in range(PASSAGES)
    ).encode()


async def prepare(folder: Path) -> Ground:
    """Create a data folder with documents and a result that is stored whole."""
    async with Rig(folder) as rig:
        rig.application.begin()
        domain = await rig.domain()
        for number in range(DOCUMENTS):
            assert (await rig.upload(domain, f"{number}.md", text_of(number)))["status"] == "indexed"
        conversation = await rig.conversation(domain)
        record = await rig.application.services.conversations.get(LOCAL, ConversationId(conversation))
        ref, data = new_id("ref"), b"".join(text_of(number) for number in range(DOCUMENTS))
        await PayloadFiles(rig.settings.data / "payloads").write(ref, data)
        payload = payloads.record_of(ref, record.session_id, "text/plain", data)
        await rig.application.database.write(lambda conn: payloads.put(conn, payload))
        return Ground(folder, domain, ref, data)


def damage(file: Path, kind: str, random: Random) -> None:
    content = bytearray(file.read_bytes())
    match kind:
        case "empty":
            content.clear()
        case "half":
            del content[len(content) // 2 :]
        case "flipped":
            for _ in range(8):
                content[random.randrange(len(content))] ^= 0xFF
        case "gone":
            file.unlink()
            return
    file.write_bytes(content)


async def run(ground: Ground, trial: Trial, folder: Path, random: Random) -> list[str]:
    """Run one trial in a copy of the ground below ``folder``, and return the problems."""
    shutil.copytree(ground.folder, folder, symlinks=True, dirs_exist_ok=True)
    damage(folder / "data" / trial.file, trial.kind, random)
    problems: list[str] = []
    async with Rig(folder) as rig:
        rig.application.begin()
        for number in range(DOCUMENTS):
            for passage in (0, PASSAGES - 1):
                problem = await _find(rig, ground.domain, number, passage)
                problems += [f"{trial}: {problem}"] if problem else []
        answer = await rig.http.get(f"/api/payloads/{ground.ref}")
    if answer.status_code != 404 and answer.content != ground.result:
        problems.append(f"{trial}: a kept result is answered {answer.status_code} and reads otherwise")
    return problems


async def _find(rig: Rig, domain: str, document: int, passage: int) -> str | None:
    """Search for a passage until it is found. Return an untrue answer of a search, if any."""
    passage_word = word(document, passage)
    path = f"/api/domains/{domain}/documents/search"
    with anyio.move_on_after(SECONDS):
        checks = count()
        while True:
            response = await rig.http.post(path, json={"query": passage_word, "threshold": 0})
            if response.status_code == 503:
                await pause(next(checks))
                continue
            if response.status_code != 200:
                return f"a search was answered {response.status_code}: {response.text[:200]}"
            answer = response.json()
            hits = [hit for hit in answer["hits"] if passage_word in str(hit["sentences"])]
            if hits:
                return None if hits[0]["documentName"] == f"{document}.md" else f"a passage has another name: {hits[0]}"
            if "incomplete" not in answer:
                return f"{passage_word} of {document}.md is not found, and nothing is said of it"
            await pause(next(checks))
    return f"{passage_word} of {document}.md did not come back within {SECONDS:.0f} s"
