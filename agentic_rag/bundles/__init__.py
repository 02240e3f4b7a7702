"""A domain in one file: exported, moved, imported as a new domain or over one.

``form`` has what a bundle is, ``zip_file`` its bytes; ``unpacking`` reads a stranger's. ``entries`` takes the secrets
out of MCP entries, ``contents`` collects a domain, ``overlay`` and ``report`` say what an import would change, and
``importing`` does it.
"""
