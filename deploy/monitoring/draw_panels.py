#!/usr/bin/env python3
"""Draws the dashboard's rows as PNG files, from what a Prometheus knows of the last seconds. The
axis below counts back from now.

Usage: deploy/monitoring/draw_panels.py HOST:PORT SECONDS FOLDER     (needs gnuplot)
"""

import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import generate_dashboard

# Points of each line; more only makes files larger.
POINTS = 100
# Over which a rate is taken, in steps between points.
RATE_STEPS = 5
PANEL_PIXELS = (360, 220)
COLUMNS = 2
AXES = {"percentunit": 'set format y "%.0f%%"', "s": 'set format y "%.1s %cs"'}


def lines_of(address, target, seconds):
    """[(legend, [(seconds ago, value)])] of one query of a panel."""
    step = seconds / POINTS
    now = time.time()
    expression = target["expr"].replace("$namespace", ".*").replace(
        "$__rate_interval", f"{max(1, round(RATE_STEPS * step))}s").replace(
            "$__range", f"{max(1, round(seconds))}s")
    query = urllib.parse.urlencode(
        {"query": expression, "start": now - seconds, "end": now, "step": step})
    with urllib.request.urlopen(f"http://{address}/api/v1/query_range?{query}",
                                timeout=60) as answer:
        rows = json.load(answer)["data"]["result"]
    found = []
    for row in rows:
        labels = row["metric"]
        legend = re.sub(r"{{(\w+)}}", lambda name, labels=labels: labels.get(name[1], ""),
                        target["legendFormat"])
        points = [(at - now, float(value)) for at, value in row["values"] if value != "NaN"]
        # What never happened is no line of its own.
        if points and (len(rows) == 1 or any(value != 0 for _, value in points)):
            found.append((legend, points))
    return found


def draw(path, title, panels):
    """Writes a picture of [(title, unit, lines)]."""
    height = -(-len(panels) // COLUMNS)
    size = f"{COLUMNS * PANEL_PIXELS[0]},{height * PANEL_PIXELS[1] + 30}"
    script = [f"set terminal pngcairo size {size} font 'sans,9' background 'white'",
              f"set output {json.dumps(str(path))}",
              f"set multiplot layout {height},{COLUMNS} title {json.dumps(title)}",
              "set grid; set key outside below; set yrange [0:*]"]
    for panel, unit, lines in panels:
        scale = 100 if unit == "percentunit" else 1
        script += [AXES.get(unit, 'set format y "%.1s%c"'), f"set title {json.dumps(panel)}"]
        for i, (_, points) in enumerate(lines):
            script += [f"$line{i} << EOD",
                       *(f"{at:.1f} {scale * value:.6g}" for at, value in points), "EOD"]
        script.append("plot " + ", ".join(
            f"$line{i} with lines linewidth 1.5 title {json.dumps(legend)} noenhanced"
            for i, (legend, _) in enumerate(lines)))
    subprocess.run(["gnuplot"], input="\n".join(script) + "\nunset multiplot\n", text=True,
                   check=True)


def draw_all(address, seconds, folder):
    """{file: titles of its panels}; a panel without a line is left out."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    drawn = {}
    for title, row in generate_dashboard.ROWS:
        panels = []
        for panel, unit, targets in row:
            lines = [line for expression, legend in targets
                     for line in lines_of(address, {"expr": expression, "legendFormat": legend},
                                          seconds)]
            if lines:
                panels.append((panel, unit, lines))
        if panels:
            path = pathlib.Path(folder) / (re.sub(r"\W+", "_", title.lower()) + ".png")
            draw(path, title, panels)
            drawn[path] = [panel for panel, _, _ in panels]
    return drawn


if __name__ == "__main__":
    draw_all(sys.argv[1], float(sys.argv[2]), sys.argv[3])
