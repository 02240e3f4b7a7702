"""Load the parts that the first turn needs before the server reports that it is ready.

Loading has a time limit. If it is exceeded, the server is ready anyway, and turns report the problem.
"""

import importlib
import logging

import anyio
import anyio.to_thread

from agentic_rag.base import garbage
from agentic_rag.models.base import Model
from agentic_rag.models.pool import WarmModel
from agentic_rag.operations.health import Health
from agentic_rag.tools.pool import McpPool

log = logging.getLogger(__name__)

LOADING_SECONDS = 60.0
"""Time limit for loading. The clients of models and of MCP take seconds on an idle machine."""


async def load_what_turns_need(model: Model, pool: McpPool, health: Health, seconds: float = LOADING_SECONDS) -> None:
    """Load the clients of model and tools.

    Then report readiness and exclude the loaded objects from garbage collection.
    """
    try:
        with anyio.move_on_after(seconds) as loading:
            pool.load()
            # otherwise the first call of a tool imports it, which blocks the event loop for a tenth of a second
            await anyio.to_thread.run_sync(importlib.import_module, "jsonschema")
            if isinstance(model, WarmModel):
                await model.warm_up()
            await pool.wait_loaded()
        if loading.cancelled_caught:
            log.warning("what turns need is not loaded after %g s: turns wait for it", seconds)
    finally:
        garbage.set_aside()
        health.end_loading()
