"""What the scripts that write a page of docs share: writing it, or saying whether it is current."""

import pathlib
import sys


def main(page, generate):
    """Writes `page`, a path in the repository, as `generate` of its root makes it. With --check it
    only compares, and says which script to run."""
    root = pathlib.Path(__file__).resolve().parent.parent
    text = generate(root)
    path = root / page
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"{page} is not current: run docs/{pathlib.Path(sys.argv[0]).name}")
