"""The commands of `agentic-rag`, one module for each noun.

`agentic_rag.cli` imports the modules that declare commands, also for `--help` and for each completion in a shell. So
these import at the top only what takes a few milliseconds. A command imports the rest inside its function: SQLAlchemy,
pydantic and the HTTP client take 0.7 s, and so does everything that imports one of them. Rich, which only a terminal
needs, takes 20 ms. Modules that only a command's function imports (`client`, `doctor`, `ingest`) import at the top.
"""
