"""How long a test waits for what must come: only a failing one ever waits so long, on a machine however busy.

No test may depend on speed. Wait for a condition, with this as the bound; compare CPU times, not those on the wall; and
where something must not wait for its time-out, let that be as long as this, so that the two cannot be mistaken.
"""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 240.0  # below the longest time that a server lets a consumer wait, and below pytest's time-out
AT_ONCE_S: Final = PATIENCE_S / 2  # something was woken, and did not wait for a time-out of PATIENCE_S
