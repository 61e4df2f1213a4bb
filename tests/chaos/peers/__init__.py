"""Other lock libraries under the faults of chaos, beside leasehold.

``usages`` says which libraries, on which store and used how; ``libraries`` uses them. ``worker`` is one process that
takes locks and writes; ``ledger`` is what it writes to; ``making`` makes the faults; ``judging`` counts; ``run`` runs;
``page`` writes the table of docs/peers-under-faults.md.
"""
