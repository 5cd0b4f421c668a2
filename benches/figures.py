"""Prints the results of benches/run: a table of the figures, and a comparison with the bars.

`figures` is {figure: [pair, ...]}, a pair {"calibration": seconds, "a": value, "b": value}; either value may be missing.
"""

import math
import random
import re
import statistics

# The median is between the smallest and largest of six values in 97 of 100 cases, of five values in 94.
PAIRS_MIN = 6


def table(figures, has_b):
    """Prints one row per figure: the value of A, and with B its value, the ratio and its interval."""
    best = min(pair["calibration"] for pairs in figures.values() for pair in pairs)
    rows = [["figure", "A"] + (["B", "B/A", "95 % of the median"] if has_b else [])]
    for name, pairs in figures.items():
        of_a = [pair["a"] for pair in pairs if "a" in pair]
        row = [name, show(statistics.median(of_a)) if of_a else ""]
        both = [pair for pair in pairs if "a" in pair and "b" in pair]
        if both:
            row.append(show(statistics.median(pair["b"] for pair in both)))
            ratio = lambda pairs: [pair["b"] / pair["a"] for pair in pairs if pair.get("a")]
            calm = ratio(pair for pair in both if pair["calibration"] <= 1.05 * best)
            if len(calm) >= PAIRS_MIN:
                low, high = interval(calm)
                row += [f"{statistics.median(calm):.2f}", f"{low:.2f} to {high:.2f}"]
            elif ratio(both):
                row += [f"{statistics.median(ratio(both)):.2f}", f"{len(calm)} of {len(both)} calm"]
        rows.append(row + [""] * (len(rows[0]) - len(row)))
    print_rows(rows)


# The workload of a bar: the minimum and maximum of each option. Figures of other workloads are not compared with the bar.
W1 = {"scale": (1, 1), "networks": (1, 1), "protocol": ("delta", "delta"), "pods": (True, True)}
CHANGES = W1 | {"changes": (30, math.inf)}
CHURN = W1 | {"churn_seconds": (10, math.inf)}
# In smaller worlds, most of the growth is the same in any process.
SLOPE = W1 | {"scale": (0.1, math.inf)}
FIXED = W1 | {"fixed_seconds": (30, math.inf)}
STALL = SLOPE | {"stalled_seconds": (30, math.inf)}
ROTATIONS = {"scale": (0.1, math.inf)}
PURE = {}

# The bars: label, pattern of the figure's name, maximum, aim, and workload.
BARS = [
    ("memory per endpoint, one view, lean: B", r"memory: Private_Dirty B/endpoint", 110, 80, SLOPE),
    ("memory per watched pod: B", r"memory: Private_Dirty B/pod", 64, 40, SLOPE),
    ("memory per proxy, over 12 B per subscription: KiB", r"memory: KiB/proxy over .*", 32, None, SLOPE),
    ("memory per proxy, over 8 B per subscription: KiB", r"memory: KiB/proxy above .*", None, 16, SLOPE),
    ("decode per endpoint, protobuf: ns", r"decode_protobuf: .*", 100, 65, PURE),
    ("decode per endpoint, JSON: ns", r"decode_json: .*", 500, 400, PURE),
    ("next context, 10k services: µs", r"next_context_10k: .*", 20, 5, PURE),
    ("a delivery, one change, all: to a bare write and read", r"one change, all: delivery, to floor", 2.5, 2, CHANGES),
    ("streams woken by a targetPort: a change", r"definitions .*, targetPort: streams woken/change", 0, 0, CHANGES),
    ("streams woken by a label: a change", r"definitions .*, label: streams woken/change", 0, 0, CHANGES),
    ("CPU of a targetPort, to that of an endpoint", r"definitions \d+x20x.*, targetPort: server CPU, to .*", 1.5, 1, CHANGES),
    ("CPU of a new service, over floor: µs/proxy", r"definitions \d+x20x.*, new service: .* over floor", 60, 30, CHANGES),
    ("CPU of a new service that 5 % of the scopes see, relative to that", r"definitions \d+x20x.*, new service that a twentieth sees: server CPU, to .*", 0.05, None, CHANGES),
    ("CPU of a pod of 1,000, headless: µs/proxy", r"definitions .*, headless pod: server CPU µs/proxy", 100, 40, CHANGES),
    ("5,000 scopes over W2, beyond the proxies: MB", r"scopes of \d+ pairs: .* beyond the proxies", 200, 80, W1),
    ("5,000 scopes over W2, CPU of a definition that no proxy sees: ms", r"scopes of \d+ pairs: server CPU .*", 5, 1, CHANGES),
    ("CPU of a change, one proxy, with state: ms", r"fixed, one proxy, \d+/s, with state: .*", 0.2, 0.05, FIXED),
    ("change to one proxy, 50 changes/s, p50: ms", r"one proxy that watches everything, 50/s: latency p50.*", 8, None, FIXED),
    ("100 pages, nothing changes: % of a core", r"\d+ pages: server CPU.*", 2, None, {}),
    ("100 pages, 100 changes/s: % of a core more", r"\d+ pages, \d+ changes/s: server CPU.*", 5, None, {}),
    ("2,000 clusters, ready: s", r"\d+ clusters: ready.*", 15, 8, FIXED),
    ("2,000 clusters: MB", r"\d+ clusters: Rss MB", 400, 200, FIXED),
    ("2,000 clusters: descriptors", r"\d+ clusters: descriptors", 6000, None, FIXED),
    ("2,000 clusters, idle: % of a core", r"\d+ clusters: idle.*", 5, 2, FIXED),
    ("one of 10,000 ServiceEntries: ms", r"entries, one of \d+ changes: .*", 2, 0.5, CHANGES),
    ("CPU of a change, twice the uninterested: ratio", r"uninterested: .*", 1.05, 1.05, CHANGES),
    ("change to proxy, idle, 5 %, p50: ms", r"one change, 5 %: latency p50.*", 3, 1, CHANGES),
    ("change to proxy, idle, 5 %, p99: ms", r"one change, 5 %: latency p99.*", 8, 2, CHANGES),
    ("change to proxy, idle, 5 %, last: ms", r"one change, 5 %: last proxy.*", 10, 3, CHANGES),
    ("change to proxy, idle, all, p50: ms", r"one change, all: latency p50.*", 10, 6, CHANGES),
    ("change to proxy, idle, all, p99: ms", r"one change, all: latency p99.*", 20, 11, CHANGES),
    ("change to proxy, idle, all, last: ms", r"one change, all: last proxy.*", 25, 13, CHANGES),
    ("change to proxy, 100 changes/s, 5 %, p50: ms", r"churn 100/s, 5 %: latency p50.*", 5, 2, CHURN),
    ("change to proxy, 100 changes/s, 5 %, p99: ms", r"churn 100/s, 5 %: latency p99.*", 25, 8, CHURN),
    ("1,000 connect at once, 50 subscriptions, last in sync: s", r"storm of \d+, 5 %: last in sync.*", 2, 0.6, W1),
    ("the same, versions known: s", r"reconnect of \d+, 5 %, held: last in sync.*", 1.5, 0.4, W1),
    ("the same, sent to each: kB", r"reconnect of \d+, 5 %, held: wire.*", 10, None, W1),
    ("5,000 proxies, idle, whole process: MB", r"crowd of \d+, 5 %: Private_Dirty.*", 230, 130, W1),
    ("cold start W1 with pods: s", r"cold W1: first proxy in sync.*", 1.5, 0.5, W1),
    ("cold start W2 with pods: s", r"cold W2: first proxy in sync.*", 6, 3, W1),
    ("cold start W2, before proxies: MB", r"cold W2: Private_Dirty.*", 250, 120, W1),
    ("a stalled proxy, above idle: KiB", r"stalled: .* above idle.*", 64, 16, STALL),
    ("one VirtualService of 5,000, to proxy, p50: ms", r"\d+ VirtualServices, one edit: receive to send p50.*", 5, 2, CHANGES),
    ("one VirtualService of 5,000, to proxy, p99: ms", r"\d+ VirtualServices, one edit: receive to send p99.*", 15, 6, CHANGES),
    ("one VirtualService of 5,000, resources in addition to routes", r"\d+ VirtualServices, one edit: [cel]ds resources.*", 0, 0, CHANGES),
    ("streams woken if only order and labels differ", r"\d+ VirtualServices, order .*: streams woken.*", 0, 0, CHANGES),
    ("5,000 VirtualServices: MB beyond none", r"\d+ VirtualServices: Private_Dirty.*", 10, 5, W1),
    ("5,000 VirtualServices, cold start beyond none: s", r"\d+ VirtualServices: first proxy.*", 1, 0.3, W1),
    ("one edit, router of 2,000 hosts, p50: ms", r"router of \d+ hosts.*: receive to send p50.*", 50, 10, CHANGES),
    ("Sidecars of 5 %, memory of a proxy, to none", r"Sidecars of 5 %: memory.*", 0.1, None, W1),
    ("Sidecars of 5 %, sent to a proxy, to none", r"Sidecars of 5 %: sent.*", 0.1, None, W1),
    ("one policy of 5,000, for 10 of 1,000 proxies: streams woken", r"\d+ policies, one edit: streams woken.*", 10, None, CHANGES | W1),
    ("RBAC of 200 rules, a workload: µs of CPU", r"rbac_200_rules: .*", 100, None, PURE),
    ("RBAC of 200 rules, the first workload after an edit: µs of CPU", r"rbac_200_rules_cold: .*", 100, None, PURE),
    ("5,000 policies: MB beyond none", r"\d+ policies: Private_Dirty.*", 20, None, W1),
    ("a token verified: µs of CPU", r"token_verify: .*", 200, None, PURE),
    ("1,000 agents with tokens at once, last in sync: s", r"\d+ agents with tokens: last in sync.*", 4, None, W1),
    ("1,000 agents with tokens at once, requests to API servers", r"\d+ agents with tokens: TokenReviews", 0, 0, W1),
    ("CSR to certificate, RSA 2048, 100/s, p99: ms", r"certificates, .*: with the dial p99.*", 50, None, {}),
    ("1,000 proxies move to another control plane, sent to each: kB", r"\d+ proxies move to another .*: wire.*", 10, None, W1),
    ("100 members of 1,000 exports, all imports: s", r"\d+ members of \d+ exports: all imports.*", 300, None, W1),
    ("100 members of 1,000 exports: share of a core", r"\d+ members of \d+ exports: server CPU share.*", 1, None, W1),
    ("100 members of 1,000 exports: writes/s and member", r"\d+ members of \d+ exports: writes/s.*", 20, None, W1),
    ("exports, nothing changes: writes", r"\d+ members of \d+ exports: writes while.*", 0, 0, FIXED),
    ("an export in a member: B", r"\d+ members of \d+ exports: B/export.*", 300, None, SLOPE),
    ("export to import, p99: ms", r"\d+ members of \d+ exports: export to import p99.*", 2000, 500, CHANGES),
    ("an idle agent: MB", r"an idle agent: Rss MB", 12, None, {}),
    # An occasional page of memory is within the noise.
    ("a stalled proxy, growth in a minute: B", r"stalled: growth.*", 4096, 0, STALL | W1),
    ("growth by a rotation or removal: B", r"rotations: growth.*", 100, 0, ROTATIONS),
]


def bars(figures, options):
    """Prints each measured bar with the value of A, and the verdict if the options match the workload of the bar."""
    rows = [["bar", "A", "bar", "aim", ""]]
    for what, pattern, bar, aim, about in BARS:
        unlike = [name for name, (least, most) in about.items() if not least <= options[name] <= most]
        for name, pairs in figures.items():
            values = [pair["a"] for pair in pairs if "a" in pair]
            if not values or not re.fullmatch(pattern, name):
                continue
            value = statistics.median(values)
            if unlike:
                verdict = f"not compared: {unlike[0]} {options[unlike[0]]}"
            elif aim is not None and value <= aim:
                verdict = "aim met"
            elif bar is None:
                verdict = ""
            else:
                verdict = "met" if value <= bar else "OVER"
            of = f" ({name.rsplit(', ', 1)[1]})" if "memory: KiB" in name else ""
            limits = ["" if limit is None else show(limit) for limit in (bar, aim)]
            rows.append([what + of, show(value), *limits, verdict])
    if len(rows) > 1:
        print()
        print_rows(rows)
        if any("scale" in row[-1] for row in rows):
            print("\nbars on sums and latencies are for --scale 1, those on slopes for 0.1 or more")


def interval(ratios, rounds=10_000):
    """Returns the 95 % interval of the median, by bootstrap."""
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[rounds * 25 // 1000], medians[rounds * 975 // 1000]


def show(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def print_rows(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) if not n else cell.rjust(width) for n, (cell, width) in enumerate(zip(row, widths))]
        print("| " + " | ".join(cells) + " |")
        if not number:
            print("|" + "|".join("-" * (width + 1) + (":" if n else "-") for n, width in enumerate(widths)) + "|")
