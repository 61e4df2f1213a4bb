"""``leasehold doctor`` checks whether the store is fit for leases; ``leasehold init`` creates what it needs."""

from __future__ import annotations

from collections.abc import Sequence

from .. import admin as store
from ..stores.common.findings import ERROR, OK, Finding
from .look import Answer, as_json
from .options import Options, UsageError
from .store import checked, no_namespace
from .table import GREEN, RED, YELLOW, fields

UNFIT = 1
_COLOURS = {OK: GREEN, "warning": YELLOW, ERROR: RED}


def admin(options: Options) -> Answer:
    if options.command == "doctor":
        return _told(checked(store.doctor, options.url, namespace=options.namespace), options.json)
    if not options.from_legacy:
        no_namespace(options, "all namespaces share what it creates")
    if options.print_sql:
        legacy = options.from_legacy or options.legacy or options.legacy_tables or options.legacy_zone
        if legacy or options.dry_run or options.json:
            raise UsageError("--print-sql excludes --from-legacy, the --legacy options, --dry-run and --json")
        return checked(store.schema_sql, options.url), 0
    made = checked(
        store.init,
        options.url,
        dry_run=options.dry_run,
        from_legacy=options.from_legacy,
        legacy=[*options.legacy, *options.legacy_tables],
        namespace=options.namespace,
        legacy_zone=options.legacy_zone,
    )
    return _told(made, options.json)


def _told(findings: Sequence[Finding], json: bool) -> Answer:
    code = UNFIT if any(finding.level == ERROR for finding in findings) else 0
    if json:
        return as_json([finding._asdict() for finding in findings]), code
    rows = [(found.level, found.subject, found.message) for found in findings]
    colours = [_COLOURS.get(found.level, "") for found in findings]
    return fields(rows, notes=[found.advice for found in findings], colours=colours), code
