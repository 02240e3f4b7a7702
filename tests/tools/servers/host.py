"""A process with a hub that starts one child, prints the ids of the child and of a detached grandchild, and waits."""

import sys
from pathlib import Path

import anyio

from agentic_rag.tools.toolset import open_toolset
from tests.tools.support import START, call, open_hub, plain, text_of


async def main() -> None:
    async with open_hub(Path(sys.argv[1])) as hub:
        toolset = await open_toolset(hub, [plain()], wait=START)
        child = (await call(toolset, "environment")).structured["(pid)"]
        grandchild = text_of(await call(toolset, "breed", detach=True))
        sys.stdout.write(f"{child} {grandchild}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, backend_options={"use_uvloop": True})  # as in the product
