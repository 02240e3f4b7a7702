"""Backups: everything a server keeps, in one file that either database is restored from.

The order of a backup, and why nothing that was acknowledged before it began is missing from it:

1. The records are read first, as of one moment: SQLite's online backup makes a copy, PostgreSQL gives one
   repeatable-read snapshot. Nothing waits for it.
2. The files come after. Whatever a record names was on disk before the record (payloads, documents), so that it is
   there now, unless it was deleted since. What came after that moment comes along as a file without a record: a
   document is then taken in as one that was put into its folder; of payloads only those that the records name are read.
3. A memory is its own database, copied as of one moment in its turn.

So each thing in a backup is as it was at some moment between the beginning and the end of the backup. What was deleted
in between has a record and no file: the restore finds that out and settles it (`settlement`).
"""
