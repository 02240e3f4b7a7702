"""The environment of a child: built from scratch, without variables that make a program load or run another one.

Owns the refused names and the base environment of every child. Pure: reads no environment.
"""

import re
from collections.abc import Mapping

from agentic_rag.base.errors import CommandNotAllowed, InvalidInput

SEARCH_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
"""Search path for bare command names, and the ``PATH`` of every child. Never the server's own ``PATH``."""

MARKER = "AGENTIC_RAG_MCP_CHILD"
"""Environment variable of every child: ``{marker of the data folder}:{number of the spawn}``."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

_REFUSED = """
    PATH HOME IFS ENV SHELL SHELLOPTS BASHOPTS BASH_ENV ZDOTDIR FPATH CDPATH PS4 PROMPT_COMMAND EDITOR VISUAL PAGER
    LESSOPEN BROWSER TMPDIR TEMP TMP PWD OLDPWD USER LOGNAME LANG LOCPATH NLSPATH GCONV_PATH HOSTALIASES RES_OPTIONS
    LOCALDOMAIN RESOLV_HOST_CONF CLASSPATH MAKEFLAGS TCLLIBPATH HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY DISPLAY
"""
"""Refused names, in upper case."""

_REFUSED_PREFIXES = """
    LD_ DYLD_ GLIBC_ MALLOC_ ASAN_ PYTHON VIRTUAL_ENV CONDA_ UV_ PIP_ NODE_ NPM_ YARN_ DENO_ BUN_ ELECTRON_ PERL RUBY
    GEM_ BUNDLE_ JAVA_ JDK_ _JAVA_ DOTNET_ CORECLR_ COMPLUS_ LUA_ PHP GIT_ SSH_ OPENSSL_ BASH_ CARGO_ RUST GO111
    GOFLAGS ERL_ ELIXIR_ R_ JULIA_ GUILE_ OCAML XDG_ AGENTIC_RAG_
"""
"""Refused prefixes of names, in upper case: loaders, interpreters, package clients, and our own."""

_NAMES, _PREFIXES = frozenset(_REFUSED.split()), tuple(_REFUSED_PREFIXES.split())


def steers_a_program(name: str) -> bool:
    """Return whether a variable can make a program load or run other code. Upper and lower case count as equal."""
    upper = name.upper()
    return upper in _NAMES or upper.startswith(_PREFIXES)


def base_environment(home: str, marker: str) -> dict[str, str]:
    """Return the base environment of every child."""
    return {"PATH": ":".join(SEARCH_PATH), "HOME": home, "LANG": "C.UTF-8", MARKER: marker}


def check_variables(env: Mapping[str, str], path: str) -> None:
    """Check the variables of an entry; ``path`` is the entry's.

    Raises:
        InvalidInput: The name or value of a variable is invalid.
        CommandNotAllowed: A name can steer a program.
    """
    for name, value in env.items():
        if not _NAME.fullmatch(name) or "\x00" in value:
            raise InvalidInput(f"{path}.env.{name}", "a variable name has letters, digits and _; a value has no NUL.")
        if steers_a_program(name):
            raise CommandNotAllowed(
                f"{path}.env.{name}", "this variable can make a program load or run another one; remove it."
            )
