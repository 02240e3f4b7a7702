"""The evaluation gate: an admin knows that a change made answers worse before users do.

A case is a question with facts that its answer must meet. ``verdicts`` and ``decisions`` are pure: a verdict follows
from stored citations and text, without a judge model. ``runs`` carries cases out, ``gate`` tries a change before it
counts.
"""
