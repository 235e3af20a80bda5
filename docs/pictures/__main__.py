"""Draw the pictures of the README and of the pages: ``python -m docs.pictures``.

The picture of the web chat is a screenshot; it needs ``pip install -e '.[browser]'`` and Debian's chromium.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from docs.pictures import cache, hero, run, screens
from tests import pictures as marbles

FOLDER = Path(__file__).parent
SCREENSHOT = ["tests/web/test_web_chat_browser.py", "-k", "picture_of_the_readme"]


def main() -> int:
    for name, draw in (
        ("hero", lambda: hero.draw(hero.race())),
        ("card", screens.card),
        ("terminal", screens.terminal),
        ("timeline", run.timeline),
        ("cache", cache.timeline),
    ):
        (FOLDER / f"{name}.svg").write_text(draw())
    marbles.write()
    environment = {**os.environ, "RXLLM_PICTURES": str(FOLDER), "RXLLM_JUDGES": "browser"}
    return subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *SCREENSHOT], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
