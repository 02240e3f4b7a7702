"""The evaluation gate: shows an admin that a change makes answers worse, before users notice.

A case is a question with facts that its answer must meet. ``verdicts`` and ``decisions`` are pure: a verdict follows
from stored citations and text, without a judge model. ``runs`` runs the cases, ``gate`` tries a change before it takes
effect.
"""
