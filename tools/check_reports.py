#!/usr/bin/env python3
"""Checks the pages of `coppice report` as other readers see them.

Makes a study's points and a run's metrics by hand, lets the program draw them, and reads the pages with
an XML parser: well-formed, every section there, nothing fetched, every plot with a title, labelled axes
and their units, and the figures of the tables equal to those worked out here. With --browser it also
opens them in headless Chromium at the width of a desktop and of a phone: no text is clipped, none lies
on another, none is too small to read, and the page is no wider than the screen.

    python3 tools/check_reports.py build/release/launch/coppice [--browser chromium] [--keep DIR]

--keep leaves the pages, and pictures of them, in DIR. Exit status: 0 in order, 1 not.
"""

import argparse
import html
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

WIDTHS = {"desktop": 1280, "phone": 390}
STUDY_SECTIONS = ["speed", "memory", "largest", "phases", "strong", "weak", "equality", "points",
                  "config"]
RUN_SECTIONS = ["loss", "reward", "policy", "gradient", "time", "sharing", "memory", "config"]


def study_points() -> list[dict]:
    """Two prefixes, three group sizes, three grids: round figures, some of them missing."""
    points = []
    for tensor, context in ((1, 1), (2, 1), (1, 2)):
        for prefix in (128, 2048):
            for group in (2, 4, 8):
                for sharing in ("GROUPED", "REPEATED"):
                    for repetition in range(3):
                        copies = 1 if sharing == "GROUPED" else group
                        rows = copies * prefix + group * 32
                        seconds = rows / 500 / (tensor * context) ** 0.8 * (1 + 0.03 * repetition)
                        point = {"prefix_length": prefix, "response_length": 32,
                                 "group_size": group, "sharing": sharing, "recompute": "NONE",
                                 "tensor": tensor, "context": context, "data": 1,
                                 "repetition": repetition}
                        if prefix == 2048 and group == 8 and sharing == "REPEATED":
                            point |= {"status": "out_of_memory",
                                      "error": "not run: it needs 61 GB by its plan, this machine "
                                               "has 31 GB <&>."}
                        elif prefix == 128 and group == 8 and tensor == 2 and repetition == 2:
                            point |= {"status": "failed", "error": "ended by signal 9"}
                        else:
                            point |= {
                                "status": "ok", "step_seconds": seconds,
                                "seconds": {"plan": 0.01, "forward": 0.3 * seconds,
                                            "backward": 0.6 * seconds, "optimizer": 0.05,
                                            "checkpoint": 0.1, "old_logprobs": 0.2},
                                "executed_flops": rows * 10**8, "rows": rows,
                                "logical_rows": group * (prefix + 32),
                                "peak_memory_bytes": 2**28 + rows * 2**17,
                                "predicted_memory_bytes": 2**28 + rows * 2**17 + 2**20,
                                "loss": 0.5, "grad_norm": 3.0 if copies == 1 else 3.000003}
                            if sharing == "GROUPED":
                                point["logprob_difference"] = 2e-6
                            if tensor * context > 1:
                                point["seconds"]["reduce"] = 0.02 * seconds
                                point["communication_bytes"] = rows * 4096
                        points.append(point)
    return points


def write_inputs(place: Path) -> list[Path]:
    """Directories of a study and of runs of one, some and many steps."""
    study = place / "study"
    study.mkdir()
    with (study / "points.jsonl").open("w") as out:
        for point in study_points():
            out.write(json.dumps(point) + "\n")
    (study / "study.textproto").write_text('out_dir: "studies/<x>"\n')
    made = [study]
    for steps in (1, 30, 2000):
        run = place / f"run{steps}"
        run.mkdir()
        with (run / "metrics.jsonl").open("w") as out:
            for step in range(1, steps + 1):
                share = step / steps
                out.write(json.dumps({
                    "step": step, "skipped": step == 3, "loss": math.cos(step) * 0.1 - share,
                    "reward_mean": share, "reward_std": 0.4, "entropy": 2 - share,
                    "clip_fraction": 0.02 * share, "ratio_mean": 1.0, "ratio_max": 1.5,
                    "grad_norm": 1 + math.sin(step) ** 2, "learning_rate": 1e-6,
                    "rows": 1000, "logical_rows": 4000, "loss_tokens": 800, "responses": 16,
                    "step_seconds": 20.5, "seconds": {"plan": 0.01, "forward": 7, "backward": 12,
                                                      "optimizer": 1.2},
                    "rows_per_second": 48.8, "logical_tokens_per_second": 195.1,
                    "peak_memory_bytes": 3 * 2**30, "peak_resident_bytes": 4 * 2**30,
                    "sharing": "GROUPED"}) + "\n")
        (run / "config.textproto").write_text('run_dir: "runs/<x>"\nseed: 1\n')
        made.append(run)
    return made


class Page:
    def __init__(self, path: Path):
        self.name = f"{path.parent.name}/{path.name}"
        self.text = path.read_text(encoding="utf-8")
        self.root = ET.fromstring(self.text.removeprefix("<!DOCTYPE html>"))

    def tables_after(self, section: str) -> list[list[list[str]]]:
        """Rows of cells of the tables between a section's heading and the next."""
        tables, within = [], False
        for element in self.root.find("body"):
            if element.tag == "h2":
                within = element.get("id") == section
            elif within:
                tables += [[["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
                           for table in element.iter("table")]
        return tables


def structure_problems(page: Page, sections: list[str]) -> list[str]:
    wrong = []
    found = [h.get("id") for h in page.root.iter("h2")]
    if found != sections:
        wrong.append(f"sections {found}")
    ids = [e.get("id") for e in page.root.iter() if e.get("id")]
    wrong += [f"id {i} twice" for i in {i for i in ids if ids.count(i) > 1}]
    for element in page.root.iter():
        if element.tag in {"script", "link", "img", "iframe", "object", "embed", "base", "image"}:
            wrong.append(f"a {element.tag} element")
        for name, value in element.attrib.items():
            if name in {"src", "srcset", "action", "data", "background"} or name.startswith("on"):
                wrong.append(f"attribute {name}={value}")
            if name.endswith("href") and (value[:1] != "#" or value[1:] not in ids):
                wrong.append(f"a link to {value}")
    if re.search(r"https?:|//[a-z]|@import|url\((?!#)", page.text):
        wrong.append("names a place outside the page")
    for svg in page.root.iter("svg"):
        title = svg.findtext("title")
        labels = [t.strip() for t in ("".join(e.itertext()) for e in svg.iter("text"))]
        with_unit = [label for label in labels if re.search(r"\(.+\)", label)]
        if not title or svg.get("role") != "img" or len(with_unit) < 2:
            wrong.append(f"plot {title}: labels {labels}")
    return [f"{page.name}: {line}" for line in wrong]


def median(points: list[dict], figure: str) -> float | None:
    values = [p[figure] for p in points if figure in p]
    return statistics.median(values) if values else None


def cell_problems(page: Page, section: str, column: str, expected: list[float | str | None]):
    table = page.tables_after(section)[0]
    at = table[0].index(column)
    cells = [row[at] for row in table[1:]]
    if len(cells) != len(expected):
        yield f"{page.name}: {section} has {len(cells)} rows, not {len(expected)}"
    for row, (cell, value) in enumerate(zip(cells, expected)):
        if isinstance(value, str) or value is None:
            if cell != (value or "–"):
                yield f"{page.name}: {section}, {column}, row {row}: {cell}, not {value}"
        elif not math.isclose(float(cell.split()[0]), value, rel_tol=0.006):
            yield f"{page.name}: {section}, {column}, row {row}: {cell}, not {value}"


def study_problems(page: Page, points: list[dict]) -> list[str]:
    """The tables against the points, worked out anew."""
    key = ("prefix_length", "tensor", "context", "group_size")
    together: dict[tuple, dict[str, list[dict]]] = {}
    for point in points:
        of_sharing = together.setdefault(tuple(point[k] for k in key), {})
        of_sharing.setdefault(point["sharing"], []).append(point)
    # By prefix, then grid as tensor, context, then group size: the order of the page.
    rows = [together[k] for k in sorted(together)]

    def ratio(row: dict, figure: str) -> float | None:
        over, under = median(row["REPEATED"], figure), median(row["GROUPED"], figure)
        return over / under if over and under else None

    wrong = [
        *cell_problems(page, "speed", "speed-up", [ratio(r, "step_seconds") for r in rows]),
        *cell_problems(page, "speed", "FLOP ratio", [ratio(r, "executed_flops") for r in rows]),
        *cell_problems(page, "speed", "repeated (s)",
                       [median(r["REPEATED"], "step_seconds") or "out of memory" for r in rows]),
        *cell_problems(page, "memory", "repeated / grouped",
                       [ratio(r, "peak_memory_bytes") for r in rows]),
        *cell_problems(page, "phases", "forward (s)",
                       [median([p["seconds"] for p in points_of if "seconds" in p], "forward")
                        for r in rows for points_of in (r["GROUPED"], r["REPEATED"])]),
        *cell_problems(page, "points", "repetitions done",
                       [float(sum(p["status"] == "ok" for p in points_of))
                        for r in rows for points_of in (r["GROUPED"], r["REPEATED"])])]
    errors = {html.unescape(cell) for row in page.tables_after("points")[0] for cell in row[-1:]}
    wrong += [f"{page.name}: {error} is not told" for error in
              {p["error"] for p in points if "error" in p} - errors]
    if "Ratio is prefix length / mean response length" not in page.text:
        wrong.append(f"{page.name}: ratio is not defined")
    return wrong


# Runs beside the page in a frame as wide as a screen, and writes what it finds into the document.
PROBE = """<!DOCTYPE html><body style="margin:0"><iframe id="f" style="border:0;width:WIDTHpx;
height:900px" src="PAGE"></iframe><pre id="result"></pre><script>
function corners(t) {
  const b = t.getBBox(), m = t.getScreenCTM();
  return [[b.x, b.y], [b.x + b.width, b.y], [b.x + b.width, b.y + b.height], [b.x, b.y + b.height]]
    .map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]);
}
function apart(p, q) {  // two rectangles, maybe turned: a line between them
  for (const r of [p, q]) for (let i = 0; i < 2; ++i) {
    const n = [r[i + 1][1] - r[i][1], r[i][0] - r[i + 1][0]], size = Math.hypot(...n) || 1;
    const along = s => s.map(c => (c[0] * n[0] + c[1] * n[1]) / size);
    const a = along(p), b = along(q);
    if (Math.max(...a) < Math.min(...b) + 1 || Math.max(...b) < Math.min(...a) + 1) return true;
  }
  return false;
}
document.getElementById('f').onload = function () {
  const wrong = [], d = this.contentDocument;
  for (const e of d.querySelectorAll('details')) e.open = true;
  const width = d.documentElement.scrollWidth;
  if (width > WIDTH) wrong.push(`the page is ${width} wide`);
  for (const e of d.querySelectorAll('h1,h2,h3,p,li,figcaption,summary'))
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth) wrong.push('overflows: ' + e.textContent);
  for (const c of d.querySelectorAll('td,th'))
    if (c.scrollWidth > c.clientWidth + 1) wrong.push('a cell overflows: ' + c.textContent);
  for (const svg of d.querySelectorAll('svg')) {
    const box = svg.getBoundingClientRect(), name = svg.querySelector('title').textContent;
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
    const places = texts.map(corners);
    for (let i = 0; i < texts.length; ++i) {
      const text = texts[i].textContent.trim();
      if (places[i].some(([x, y]) => x < box.left - 0.5 || x > box.right + 0.5 ||
                                     y < box.top - 0.5 || y > box.bottom + 0.5))
        wrong.push(`${name}: clipped: ${text}`);
      const m = texts[i].getScreenCTM();
      const size = parseFloat(getComputedStyle(texts[i]).fontSize) * Math.hypot(m.a, m.b);
      if (size < 9) wrong.push(`${name}: ${text} is ${size.toFixed(1)} px high`);
      for (let j = 0; j < i; ++j)
        if (!apart(places[i], places[j]))
          wrong.push(`${name}: ${text} lies on ${texts[j].textContent.trim()}`);
    }
  }
  document.getElementById('result').textContent = JSON.stringify(
    {wrong, svgs: d.querySelectorAll('svg').length, height: d.documentElement.scrollHeight});
};
</script></body>"""


def browse(browser: str, place: Path, *arguments: str) -> str:
    done = subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--allow-file-access-from-files", f"--user-data-dir={place / 'profile'}", *arguments],
        capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"{browser} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def browser_problems(browser: str, place: Path, page: Path, plots: int, pictures: bool) -> list[str]:
    wrong = []
    for screen, width in WIDTHS.items():
        name = f"{page.parent.name}/{page.name} on a {screen}"
        probe = place / f"{page.parent.name}_{screen}.html"
        probe.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", page.as_uri()))
        dom = browse(browser, place, "--virtual-time-budget=20000", "--window-size=1400,1000",
                     "--dump-dom", probe.as_uri())
        found = re.search(r'<pre id="result">(\{.*?\})</pre>', dom, re.S)
        if not found:
            wrong.append(f"{name}: was not looked at")
            continue
        result = json.loads(html.unescape(found.group(1)))
        if result["svgs"] != plots:
            wrong.append(f"{name}: {result['svgs']} plots of {plots}")
        wrong += [f"{name}: {line}" for line in result["wrong"]]
        if pictures:
            frame = place / "frame.html"
            height = min(result["height"] + 20, 16000)
            frame.write_text(f'<body style="margin:0"><iframe src="{page.as_uri()}" style="border:0;'
                             f'width:{width}px;height:{height}px"></iframe></body>')
            browse(browser, place, f"--window-size={max(width, 520)},{height}", "--hide-scrollbars",
                   f"--screenshot={probe.with_suffix('.png')}", frame.as_uri())
    return wrong


def check(program: Path, browser: str | None, place: Path, pictures: bool) -> list[str]:
    wrong = []
    for directory in write_inputs(place):
        done = subprocess.run([program, "report", directory], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise SystemExit(f"coppice report {directory.name} failed:\n{done.stderr}")
        is_study = directory.name == "study"
        path = directory / ("report.html" if is_study else "run_report.html")
        page = Page(path)
        wrong += structure_problems(page, STUDY_SECTIONS if is_study else RUN_SECTIONS)
        if is_study:
            wrong += study_problems(page, study_points())
        elif "No step of this run has: kl." not in page.text:
            wrong.append(f"{page.name}: does not say that there is no kl")
        plots = len(list(page.root.iter("svg")))
        if plots < 10:
            wrong.append(f"{page.name}: {plots} plots")
        if browser:
            wrong += browser_problems(browser, place, path, plots, pictures)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", type=Path, help="the built coppice")
    parser.add_argument("--browser", help="a Chromium to open the pages with")
    parser.add_argument("--keep", type=Path, help="an empty directory to leave the pages in")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        if arguments.keep:
            place = arguments.keep.resolve()
            place.mkdir(parents=True, exist_ok=True)
        wrong = check(arguments.program.resolve(), arguments.browser, place,
                      arguments.keep is not None)
    print("\n".join(wrong) if wrong else "reports are in order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
