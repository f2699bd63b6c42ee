"""Five field reports, measured again: the old figures beside today's, on one page.

python -m loadtests.field_reports                       all, quickly
python -m loadtests.field_reports coalescing receive    some
python -m loadtests.field_reports --profile release     as many messages and bytes as then
"""

from __future__ import annotations

from loadtests.command import main

from . import coalescing, mail, receive, wsgiref_payloads

__all__ = ["TABLES"]

TABLES = [
    wsgiref_payloads.TABLE,
    mail.APPEND,
    mail.DELIVERY,
    coalescing.TABLE,
    receive.TABLE,
]

if __name__ == "__main__":
    raise SystemExit(
        main(
            "loadtests.field_reports",
            __doc__,
            TABLES,
            page_name="field-reports",
            page_title="Field reports, then and today",
        )
    )
