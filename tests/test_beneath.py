"""Only `mcp_servers.safe_files` opens, lists or stats files below a workspace."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_layers import ROOT, nodes, sources

ELSEWHERE = {
    "agentic_rag/access/acts.py": "a folder of the data folder",
    "agentic_rag/access/oidc/mapping.py": "the operator's file",
    "agentic_rag/app/application.py": "the data folder",
    "agentic_rag/archive/files.py": "backups, bundles, and the folders they are unpacked into",
    "agentic_rag/archive/zips.py": "members of a zip",
    "agentic_rag/backup/archive.py": "a backup",
    "agentic_rag/backup/backups_folder.py": "backups",
    "agentic_rag/backup/contents.py": "the copy of a memory, beside the backup",
    "agentic_rag/backup/restoring.py": "a data folder that nobody uses yet",
    "agentic_rag/backup/settlement.py": "a data folder that nobody uses yet",
    "agentic_rag/backup/making.py": "the database, and its copy beside the backup",
    "agentic_rag/backup/upgrading.py": "the database, its copies and backups",
    "agentic_rag/bundles/importing.py": "the folder of an import",
    "agentic_rag/bundles/overlay.py": "the folder of an import",
    "agentic_rag/bundles/pending.py": "the folder of an import",
    "agentic_rag/bundles/placing.py": "the folder of an import, and a workspace in it that no domain has yet",
    "agentic_rag/bundles/reading.py": "the folder of an import",
    "agentic_rag/bundles/receiving.py": "the folder of an import",
    "agentic_rag/commands/bundles.py": "a bundle of the person at the command line",
    "agentic_rag/commands/backup.py": "files of the person at the command line",
    "agentic_rag/commands/doctor.py": "the database",
    "agentic_rag/commands/evaluate.py": "files of the person at the command line",
    "agentic_rag/commands/ingest.py": "files of the person at the command line",
    "agentic_rag/commands/launch_requests.py": "a file of the person at the command line",
    "agentic_rag/commands/mcp.py": "a file of the person at the command line",
    "agentic_rag/commands/memory.py": "a PromptX folder of the person at the command line",
    "agentic_rag/commands/roles.py": "a folder of the person at the command line",
    "agentic_rag/documents/files.py": "uploads, beside the workspaces",
    "agentic_rag/documents/child_process.py": "the interpreter and its packages",
    "agentic_rag/documents/disk_reserve.py": "how much room a disk has",
    "agentic_rag/documents/embedding_state.py": "embedding models",
    "agentic_rag/documents/fork_server.py": "the null device",
    "agentic_rag/documents/ocr_child.py": "the open file that came along",
    "agentic_rag/documents/page_child.py": "the open file that came along",
    "agentic_rag/domains/vault.py": "keys",
    "agentic_rag/domains/vault_keys.py": "keys",
    "agentic_rag/domains/watched_workspaces.py": "the folders around the workspaces, and notes of changes",
    "agentic_rag/domains/workspaces.py": "templates, and the folder of the workspaces",
    "agentic_rag/models/prices.py": "the operator's file",
    "agentic_rag/models/profile_file.py": "the operator's file",
    "agentic_rag/models/provider_file.py": "the operator's file, and the key files it names",
    "agentic_rag/operations/contents.py": "the folder of the workspaces",
    "agentic_rag/operations/data_folder.py": "the data folder",
    "agentic_rag/operations/process_user.py": "the data folder and the installation",
    "agentic_rag/operations/maintenance.py": "templates, and the folder of the workspaces",
    "agentic_rag/server/web_files.py": "the console's files, in the package",
    "agentic_rag/server/peer_credentials.py": "what the system tells of sockets",
    "agentic_rag/base/settings.py": "the built-in roles and templates",
    "agentic_rag/store/database.py": "the database",
    "agentic_rag/store/payloads.py": "payloads",
    "agentic_rag/tools/launch/allowed.py": "the catalogue, and programs",
    "agentic_rag/tools/launch/bundles.py": "bundles that were proposed, and the folder one is unpacked into",
    "agentic_rag/tools/launch/launcher.py": "what a child is given, opened without links",
    "agentic_rag/tools/launch/leftovers.py": "processes",
    "agentic_rag/tools/launch/local_programs.py": "the operator's folder, by its files as they were just listed",
    "agentic_rag/tools/launch/packages.py": "packages",
    "agentic_rag/tools/launch/policy.py": "homes of servers, and where a slot leads",
    "agentic_rag/tools/launch/registry_clients.py": "settings of package registries, and the folder of an installation",
    "agentic_rag/tools/launch/sandbox.py": "the system",
    "agentic_rag/tools/launch/usage.py": "processes, how much room a disk has, and open files",
    "agentic_rag/tools/transports/stdio.py": "locks of servers that keep a state",
    "agentic_rag/testing/fake_api.py": "a stand-in's script",
    "agentic_rag/testing/fake_resources.py": "a stand-in's state and log",
    "mcp_servers/safe_files.py": "everything below a workspace",
    "mcp_servers/promptx/builtin.py": "the built-in roles",
    "mcp_servers/retriever/edge_shard.py": "the index",
    "mcp_servers/retriever/edge_store.py": "the index",
    "mcp_servers/retriever/fast_embedder.py": "embedding models",
    "mcp_servers/retriever/formats": "the open file of a reader",
    "mcp_servers/retriever/index_process.py": "the index",
    "mcp_servers/retriever/index_supervisor.py": "the index",
    "mcp_servers/retriever/model_files.py": "embedding models",
    "mcp_servers/retriever/wheel_embedder.py": "the pipes of its process",
    "mcp_servers/retriever/parsing.py": "the open file of a reader",
}
"""Modules that use the file system, with the folder that they own."""

METHODS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "lstat", "is_dir", "is_symlink", "iterdir", "glob"),
    *("rglob", "mkdir", "unlink", "rmdir", "symlink_to", "hardlink_to", "readlink", "chmod", "open", "is_file"),
    *("exists", "stat"),
}
"""Methods of `Path`. Functions of file system modules count under every name."""
MODULES = frozenset({"os", "shutil", "glob", "tempfile"})
HARMLESS = {
    *("os.getpid", "os.getppid", "os.path.join", "os.pathsep.join", "os.kill", "os.killpg", "os.close", "os.nice"),
    *("os.fdopen", "os.dup", "os.dup2", "os.fork", "os.waitpid", "os.waitstatus_to_exitcode", "os._exit", "os.write"),
    *("os.urandom", "os.environ.get", "os.environ.items", "os.geteuid", "os.getuid", "os.cpu_count", "os.getpgid"),
    *("os.sched_getaffinity", "os.setsid", "os.set_inheritable", "os.set_blocking", "os.isatty"),
}
OURS = frozenset({"folder", "root", "place", "_tools", "Database", "webbrowser"})
"""Names of our own objects that have such a method."""


@cache
def file_calls(path: Path) -> tuple[str, ...]:
    return tuple(_find_file_calls(path))


def _find_file_calls(path: Path) -> Iterator[str]:
    for node in nodes(path, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            yield f"{node.lineno} open"
        elif isinstance(node.func, ast.Attribute) and (node.func.attr in METHODS or first_name(node.func) in MODULES):
            call_name, receiver = ast.unparse(node.func), ast.unparse(node.func.value)
            of_system = call_name.partition(".")[0] in MODULES and call_name not in HARMLESS
            of_path = node.func.attr in METHODS and receiver.rpartition(".")[2] not in OURS
            if of_system or of_path:
                yield f"{node.lineno} {call_name}"


def first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_modules_not_listed_in_elsewhere_use_no_files_directly() -> None:
    calls_found = [
        f"{name}:{call}: use mcp_servers.safe_files, or add the module to ELSEWHERE with what it opens"
        for path in sources()
        if not any(
            (name := str(path.relative_to(ROOT))) == prefix or name.startswith(f"{prefix}/") for prefix in ELSEWHERE
        )
        for call in file_calls(path)
    ]
    assert calls_found == []


def test_modules_listed_as_using_files_do_use_them() -> None:
    using_files = {str(path.relative_to(ROOT)) for path in sources() if file_calls(path)}
    assert [
        prefix
        for prefix in ELSEWHERE
        if not any(name == prefix or name.startswith(f"{prefix}/") for name in using_files)
    ] == []
