"""Five field reports, measured again: the old figures beside today's, on one page.

    python -m loadtests.field_reports                       all, the quick profile
    python -m loadtests.field_reports coalescing receive    some
    python -m loadtests.field_reports --profile full        as many messages and bytes as then

Each report is a module with TITLE, OLD (the figures of then) and run(profile) -> ReportResult.
"""

from .page import page
from .result import Bars, Figures, Profile, ReportResult, Summary

__all__ = ["Bars", "Figures", "Profile", "ReportResult", "Summary", "page"]
