"""Pictures of the results, as SVG: throughput in bars, latency by percentile, growth in curves.

What goes into a picture is made by `lines_of` and `percentiles_of`, which are pure. A result takes part if it says in
which `chart` and at which `x` it stands. The same results give the same bytes, so that a new run shows as a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Result = dict[str, Any]
T = TypeVar("T")
OURS = "rivvend"
COLORS = {
    "rivvend": "#0b6e4f",
    "rivvend, native protocol": "#0b6e4f",
    "rivvend, Kafka protocol": "#6abf95",
    "rivvend, our client": "#0b6e4f",
    "rivvend, confluent-kafka": "#6abf95",
    "Apache Kafka": "#c1440e",
    "Redis": "#8a1c2b",
    "NATS JetStream": "#2f6fab",
    "librdkafka's mock broker": "#8c8c8c",
}
OTHER = "#b08d2f"
WIDE = 30
"""A scale is logarithmic if the largest value is so many times the smallest."""


class Point(NamedTuple):
    x: str
    value: float
    low: float
    high: float


class Kind(NamedTuple):
    chart: str
    title: str
    style: str
    x_label: str
    less_is_better: bool = False


KINDS = (
    Kind("produce-sizes", "Produce, by size of record", "bars", ""),
    Kind("consume-sizes", "Consume, by size of record", "bars", ""),
    Kind("produce-codecs", "Produce, 1 KB, by codec", "bars", ""),
    Kind("consume-codecs", "Consume, 1 KB, by codec", "bars", ""),
    Kind("produce-partitions", "Produce, 100 B, by partitions", "bars", "partitions"),
    Kind("clients", "One request in flight, no sync", "bars", "clients"),
    Kind("clients-synced", "One request in flight, sync before answer", "bars", "clients"),
    Kind("growth-produce", "Produce, as partitions grow", "curve", "partitions"),
    Kind("growth-start", "Start, as partitions grow", "curve", "partitions", less_is_better=True),
)


def draw(results: Sequence[Result], folder: Path) -> list[tuple[str, str]]:
    """Write what can be drawn: file names, and what they show. Without matplotlib there are no pictures."""
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "rivven", "svg.fonttype": "none", "font.size": 10, "axes.axisbelow": True}
    mpl.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "font.family": "sans-serif"}
    return [*_lines(results, folder), *_latencies(results, folder)]


def lines_of(results: Sequence[Result], chart: str) -> dict[str, list[Point]]:
    """For each contender its points in the order of the results: ours first, then each rival's."""
    lines: dict[str, dict[str, Point]] = {}
    for result in results:
        if result.get("chart") != chart:
            continue
        x = str(result["x"])
        ours = Point(x, result["value"], result["low"], result["high"])
        lines.setdefault(result.get("ours", OURS), {}).setdefault(x, ours)
        if "rival" in result:
            theirs = Point(x, result["against"], result["against_low"], result["against_high"])
            lines.setdefault(result["rival"], {}).setdefault(x, theirs)
    return {name: list(points.values()) for name, points in _ours_first(lines).items()}


def percentiles_of(results: Sequence[Result], rate: str, durability: str) -> dict[str, list[tuple[str, float]]]:
    """For each contender the latency at each percentile, at one rate and with one promise."""
    lines: dict[str, list[tuple[str, float]]] = {}
    for result in results:
        if result.get("chart") == "latency" and (result["x"], result["durability"]) == (rate, durability):
            lines[result["ours"]] = list(result["percentiles"].items())
            if "rival" in result:
                lines[result["rival"]] = list(result["against_percentiles"].items())
    return _ours_first(lines)


def _ours_first(lines: dict[str, T]) -> dict[str, T]:
    return dict(sorted(lines.items(), key=lambda item: not item[0].startswith(OURS)))


def _lines(results: Sequence[Result], folder: Path) -> Iterator[tuple[str, str]]:
    from matplotlib import pyplot

    for kind in KINDS:
        lines = lines_of(results, kind.chart)
        if not lines:
            continue
        unit = next(result["unit"] for result in results if result.get("chart") == kind.chart)
        figure, axes = pyplot.subplots(figsize=(7.2, 3.4))
        if kind.style == "bars":
            _bars(axes, lines)
        else:
            _curve(axes, lines)
        better = "less is better" if kind.less_is_better else "more is better"
        axes.set_title(f"{kind.title} ({better})", loc="left")
        axes.set_ylabel(unit)
        axes.set_xlabel(kind.x_label)
        yield _saved(figure, axes, folder, kind.chart), kind.title


def _bars(axes: Any, lines: dict[str, list[Point]]) -> None:
    """Side by side, each with its spread. Where the largest dwarfs the smallest the scale is logarithmic, and the
    bars are dots, since the length of a bar says nothing there."""
    places = list(dict.fromkeys(point.x for points in lines.values() for point in points))
    values = [point.value for points in lines.values() for point in points if point.value > 0]
    is_wide = max(values) > WIDE * min(values)
    width = 0.8 / len(lines)
    for number, (name, points) in enumerate(lines.items()):
        color = COLORS.get(name, OTHER)
        at = [places.index(point.x) + (number - (len(lines) - 1) / 2) * width for point in points]
        heights = [each.value for each in points]
        spread = [[each.value - each.low for each in points], [each.high - each.value for each in points]]
        if is_wide:
            axes.errorbar(at, heights, spread, fmt="o", color=color, label=name, elinewidth=1.2)
        else:
            axes.bar(at, heights, width * 0.92, label=name, color=color)
            axes.errorbar(at, heights, spread, fmt="none", ecolor="#333333", elinewidth=0.8)
    axes.set_xticks(range(len(places)), places)
    if is_wide:
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_thousands())


def _curve(axes: Any, lines: dict[str, list[Point]]) -> None:
    for name, points in lines.items():
        at = [int(point.x.replace(",", "")) for point in points]
        color = COLORS.get(name, OTHER)
        axes.plot(at, [each.value for each in points], marker="o", markersize=4, label=name, color=color)
        axes.fill_between(at, [each.low for each in points], [each.high for each in points], alpha=0.2, color=color)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(_thousands())
    axes.yaxis.set_major_formatter(_thousands())


def _thousands() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.0f}" if value == int(value) else f"{value:g}")


def _latencies(results: Sequence[Result], folder: Path) -> Iterator[tuple[str, str]]:
    """One picture for each promise, with a panel for each rate."""
    from matplotlib import pyplot

    charted = [result for result in results if result.get("chart") == "latency"]
    for durability in dict.fromkeys(result["durability"] for result in charted):
        rates = list(dict.fromkeys(result["x"] for result in charted if result["durability"] == durability))
        figure, panels = pyplot.subplots(1, len(rates), figsize=(3.4 * len(rates), 3.6), sharey=True, squeeze=False)
        for axes, rate in zip(panels[0], rates, strict=True):
            for name, points in percentiles_of(results, rate, durability).items():
                shares, values = zip(*points, strict=True)
                axes.plot(shares, values, marker="o", markersize=3, label=name, color=COLORS.get(name, OTHER))
            axes.tick_params(axis="x", rotation=60)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(_thousands())
            axes.set_title(f"{rate} a second", loc="left", fontsize=10)
            axes.set_xlabel("percentile")
            axes.grid(axis="y", alpha=0.3)
        panels[0][0].set_ylabel("ms, end to end (less is better)")
        title = f"Latency by percentile, {durability}"
        figure.suptitle(title, x=0.02, ha="left")
        name = f"latency-{'synced' if 'before' in durability else 'unsynced'}"
        yield _saved(figure, panels[0][0], folder, name), title


def _saved(figure: Any, axes: Any, folder: Path, name: str) -> str:
    from matplotlib import pyplot

    axes.grid(axis="y", alpha=0.3)
    labels = axes.get_legend_handles_labels()
    figure.legend(*labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    path = folder / f"{name}.svg"
    figure.set_layout_engine("constrained")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path.name
