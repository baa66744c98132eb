"""Rules about documents: they exist, they are short, they are true."""

import posixpath
import re

import generate_config
import generate_metrics
import generate_roofline
from source_tree import CPP, TEXT, Finding

README_LINES = 80
# Rooms whose README says what lives there, who owns it, which threads, what must stay true.
ROOMS = (
    "", "bench", "bench/demo_model", "bench/kernels", "common", "common/rpc", "deploy",
    "deploy/demo-model", "docs", "kernels", "kernels/cuda", "proto", "services", "services/cli",
    "services/client",
    "services/gateway", "services/router", "services/scheduler", "services/text",
    "services/worker", "services/worker/engine", "services/worker/kv", "services/worker/model",
    "tests", "tests/kernels", "tests/tidy",
)


def room_readmes(tree):
    """Every room that exists has a README.md."""
    for room in ROOMS:
        readme = posixpath.join(room, "README.md")
        if readme not in tree and any(
                p.startswith(room + "/" if room else "") for p in tree.paths):
            yield Finding(readme, 0, "this room has no README.md")


def readme_length(tree):
    """A README is at most one page; details stand beside the code."""
    for path in tree.select({".md"}):
        count = len(tree.lines(path))
        if posixpath.basename(path) == "README.md" and "/" in path and count > README_LINES:
            yield Finding(path, 0, f"{count} lines, {README_LINES} are a page")


def _anchors(text):
    for heading in re.findall(r"(?m)^#+\s+(.*)$", text):
        yield re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def links_resolve(tree):
    """A link leads to a file of this repository and to a heading that exists."""
    for path in tree.select({".md"}):
        fenced = False
        for number, line in enumerate(tree.lines(path), 1):
            fenced ^= line.lstrip().startswith("```")
            if fenced:
                continue
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                page = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
                page = page if name else path
                if page not in tree and not (tree.root / page).is_dir():
                    yield Finding(path, number, f"{target} does not exist")
                elif anchor and page.endswith(".md") and anchor not in _anchors(tree.text(page)):
                    yield Finding(path, number, f"{page} has no heading #{anchor}")


def metrics_page_current(tree):
    """docs/metrics.md is what docs/generate_metrics.py writes, so every metric is documented."""
    page = generate_metrics.generate(tree.root)
    if generate_metrics.PAGE not in tree or tree.text(generate_metrics.PAGE) != page:
        yield Finding(generate_metrics.PAGE, 0, "run docs/generate_metrics.py")


def config_page_current(tree):
    """docs/config.md is what docs/generate_config.py writes."""
    page = generate_config.generate(tree.root)
    if generate_config.PAGE not in tree or tree.text(generate_config.PAGE) != page:
        yield Finding(generate_config.PAGE, 0, "run docs/generate_config.py")


def roofline_page_current(tree):
    """docs/roofline.md is what docs/generate_roofline.py writes of the records that are there."""
    page = generate_roofline.generate(tree.root)
    if generate_roofline.PAGE not in tree or tree.text(generate_roofline.PAGE) != page:
        yield Finding(generate_roofline.PAGE, 0, "run docs/generate_roofline.py")


def metrics_readable(tree):
    """Each metric's type, help text and labels can be read from its struct, and its name is
    lockstep_<service>_<noun>_<unit>[_total]."""
    metrics = generate_metrics.find_metrics(tree.root)
    found = {metric.name for metric in metrics}
    for metric in metrics:
        if not metric.type:
            yield Finding(metric.path, 0, f"{metric.name}: no metrics:: member of that name")
        if not metric.help.endswith("."):
            yield Finding(metric.path, 0, f"{metric.name}: the help text is no sentence")
        if metric.type == "histogram" and not re.search(
                r"_(seconds|bytes|sequences|rows|tokens)$", metric.name):
            yield Finding(metric.path, 0, f"{metric.name} names no unit")
    for path in tree.select({".h", ".cc"}, "services/"):
        if path.endswith(("_metrics.h", "_metrics.cc")):
            for name in sorted(generate_metrics.mentioned(tree.text(path)) - found):
                yield Finding(path, 0, f"{name}: its registration cannot be read")


def metrics_exist(tree):
    """A metric named by a test, a tool, an alert, a dashboard or a page is registered somewhere."""
    found = {metric.name for metric in generate_metrics.find_metrics(tree.root)}
    series = found | {name + end for name in found for end in ("_bucket", "_count", "_sum")}
    for path in tree.select(TEXT | {".json"}):
        if path.startswith(("tests/tidy/", "tests/unit/common/")) or (
                path in tree.select(CPP) and path.startswith("common/")):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            for name in sorted(generate_metrics.mentioned(line) - series):
                # C++ targets and folders share the prefix: lockstep_router_server, for instance.
                if '"' + name in line or path.endswith((".yaml", ".yml", ".json", ".md")):
                    yield Finding(path, number, f"no such metric: {name}")


def _tests_of(text):
    """Suite.Case of every GoogleTest or unittest case in a file."""
    cases = {f"{suite}.{case}" for suite, case in
             re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text)}
    for suite, body in re.findall(r"(?ms)^class (\w+)\(.*?\):\n(.*?)(?=^\S|\Z)", text):
        cases |= {f"{suite}.{case}" for case in re.findall(r"def (test_\w+)\(", body)}
    return cases


def behaviours_tested(tree):
    """A test that tests/behaviours.md names is in the file named before it."""
    page = "tests/behaviours.md"
    for number, line in enumerate(tree.lines(page) if page in tree else (), 1):
        cases = set()
        for file, case in re.findall(r"`([\w/]+\.(?:cc|py))`|`(\w+Test\.\w+)`", line):
            if file:
                path = "tests/" + file
                cases = _tests_of(tree.text(path)) if path in tree else set()
            elif case not in cases:
                yield Finding(page, number, f"no such test there: {case}")


RULES = (room_readmes, readme_length, links_resolve, metrics_page_current, config_page_current,
         roofline_page_current, metrics_readable, metrics_exist, behaviours_tested)
