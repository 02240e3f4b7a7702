"""Backups: all data of a server in one file, from which either kind of database is restored.

The order of a backup ensures that nothing is missing that was acknowledged before its start:

1. The records are read first, as of one moment. SQLite's online backup makes a copy; PostgreSQL provides a
   repeatable-read snapshot. Neither blocks other users of the database.
2. The files follow. Each file named by a record was written before the record (payloads, documents). The file therefore
   exists now, unless it was deleted since. A file created after that moment has no record. The restore imports such a
   document as if it had been put into its folder. Payloads are read only if a record names them.
3. Each memory is a separate database, copied as of one moment in its turn.

So each item of a backup has the state of some moment between the backup's start and its end. An item deleted during
that time has a record and no file, which the restore detects and repairs (`settlement`).
"""
