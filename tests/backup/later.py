"""A later version of the tables, for tests only."""

import shutil
from pathlib import Path

from agentic_rag.store.migrations import FOLDER, HEAD, Revisions

NEXT = "9002"
STEP = f'''"""A later step: the probe says who asked."""

from alembic import op
from sqlalchemy import Column, String

revision = "{NEXT}"
down_revision = "{HEAD}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("probe", Column("who", String(), nullable=True))
    op.execute("UPDATE domains SET description = 'touched'")
'''


def make_later(folder: Path, *, serves_before: bool = False) -> Revisions:
    """Write this version's migrations and one more into a folder.

    ``serves_before``: programs of this version may use the later tables, too.
    """
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "v9002_later.py").write_text(STEP + (f'\n\noldest = "{HEAD}"\n' if serves_before else ""))
    return Revisions(folder, NEXT)
