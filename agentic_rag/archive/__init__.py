"""What bundles, backups and MCP packages share: zip files, and files that are written completely or not at all.

``zips`` writes zip files with reproducible bytes and opens those of strangers within limits. ``files`` writes, hashes
and moves files so that a killed process leaves the old file or the new one. The package knows no format: `bundles`,
`backup` and `tools.launch` define which files their archives hold.
"""
