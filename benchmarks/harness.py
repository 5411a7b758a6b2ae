"""What every benchmark script shares: cases, arguments, timing, rows and the table.

A script names its cases and leaves the rest to a `Suite`:

    suite = Suite("softmax", drops={"head_200000": "takes ten minutes"})

    @suite.cases("head_12000", "head_200000")
    def heads(run):
        for size in (12000, 200000):
            case = f"head_{size}"
            if run.wants(case):
                times = run.interleave({"ours": clock(a), "peer": clock(b)})
                yield run.row(case, times["ours"], "ms", "stock", times["peer"])

    if __name__ == "__main__":
        suite.main()

This module imports no TensorFlow, so it also runs in the environments of the peers.
"""

import argparse
import datetime
import fnmatch
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

COST_CASES = (
    "flat_*",
    "*_vs_softmax_*",
    "sam_vs_din_*",
    "exponent_*",
    "over_limit_*",
    "input_share_*",
)
"""Cases whose ratio is ours / base; in all others it is peer / ours."""

TIME_SCALES = {"s": 1.0, "ms": 1e3, "us": 1e6}
BYTE_SCALES = {"bytes": 1.0, "MB": 1e-6, "GB": 1e-9}

RUNS, QUICK_RUNS = 20, 7


class PeerMissing(Exception):
    """A peer is not installed or does not run; the message is the reason in the row."""


def clock(function):
    """Makes a callable that runs `function` and returns the seconds that it took.

    `function` must return after its work is done, not after it is queued: on a GPU it
    has to fetch a number from the result.
    """

    def timed():
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return timed


def rested(function):
    """Waits before a measurement until the threads of the other process have stopped.

    Those of OpenMP and of TensorFlow spin for some time when their work is done.
    """

    def run():
        time.sleep(0.05)
        return function()

    return run


def interleave(functions, runs, *, warmup=2, budget=None, min_runs=3):
    """Runs several callables in turn, A B A B ..., and collects what they return.

    Args:
        functions: Dict from a name to a callable that returns a float: seconds, from
            `clock` or from a peer that times itself.
        runs: Number of rounds that count.
        warmup: Number of rounds before them whose results are dropped. Defaults to `2`.
        budget: Seconds after which no further round starts, once `min_runs` are done;
            for builds and compilations that take minutes. Defaults to no limit.
        min_runs: See `budget`. Defaults to `3`.

    Returns:
        Dict from a name to the list of its results, one a round.
    """
    results = {name: [] for name in functions}
    start = time.perf_counter()
    for i in range(-warmup, runs):
        late = budget is not None and time.perf_counter() - start > budget
        if late and i >= min_runs:
            break
        for name, function in functions.items():
            result = function()
            if not isinstance(result, float):
                raise TypeError(
                    f"`functions[{name!r}]` must return a float; wrap it in `clock`. "
                    f"Received: {result!r}."
                )
            if i >= 0:
                results[name].append(result)
    return results


def summarize(samples, unit, amount=1.0):
    """Turns measurements into a median and a spread in `unit`.

    Args:
        samples: Seconds for a unit of time or a rate, bytes for a unit of size, plain
            numbers for any other unit.
        unit: `"s"`, `"ms"`, `"us"`, `"bytes"`, `"MB"`, `"GB"`, a rate such as
            `"rows/s"`, or any other word, which leaves the numbers as they are.
        amount: What one run handles, for a rate: its rows. Defaults to `1.0`.

    Returns:
        `(median, [10th percentile, 90th percentile])`.
    """
    if unit.endswith("/s"):
        values = [amount / s for s in samples]
    else:
        scale = TIME_SCALES.get(unit, BYTE_SCALES.get(unit, 1.0))
        values = [s * scale for s in samples]
    values.sort()
    low = values[round(0.1 * (len(values) - 1))]
    high = values[round(0.9 * (len(values) - 1))]
    return statistics.median(values), [low, high]


def ratio(case, value, peer_value, unit):
    """Compares two medians: peer / ours, or ours / base for `COST_CASES`.

    A rate is turned over first, so that a ratio above 1 always says that ours is faster
    (or, in a cost case, that ours takes longer).
    """
    if unit.endswith("/s"):
        value, peer_value = 1 / value, 1 / peer_value
    if any(fnmatch.fnmatchcase(case, pattern) for pattern in COST_CASES):
        return value / peer_value
    return peer_value / value


def device():
    """Says in one line what the benchmark runs on: cores, CPU, memory and GPUs."""
    model = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"model name\s*: (.*)", cpuinfo.read_text())
        model = found[1] if found else model
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count()
    parts = [f"{cores} cores {model}"]
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        parts.append(f"{memory / 2**30:.0f} GiB")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if shutil.which("nvidia-smi") and not hidden:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(query, capture_output=True, text=True, check=False)
        parts += names.stdout.split("\n")[:-1]
    return ", ".join(parts)


def versions(*packages):
    """Gives the installed versions of Python, Keras, TensorFlow and `packages`."""
    found = {"python": platform.python_version()}
    for package in ("keras", "tensorflow", *packages):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def commit():
    """Gives the commit of this repository, `-dirty` where files differ from it."""
    git = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        here = pathlib.Path(__file__).parent
        done = subprocess.run(git, cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def peak_memory(function, *, python=sys.executable, env=None, **kwargs):
    """Runs `function(**kwargs)` in a fresh process and gives its peak resident bytes.

    The process reads its own high-water mark (`VmHWM`); what `getrusage` says about a
    child starts at the size of its parent. Linux only.

    Args:
        function: A function at the top level of a file, which is imported by path; it
            imports what it needs.
        python: The interpreter, for a peer in another environment.
        env: Dict of further environment variables.
        **kwargs: Arguments that JSON can hold.

    Returns:
        Bytes, a float.
    """
    child = [python, os.path.abspath(__file__), "measure-peak"]
    child += [inspect.getsourcefile(function), function.__name__, json.dumps(kwargs)]
    done = subprocess.run(
        child, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, check=True
    )
    return float(done.stdout.split()[-1])


def _measure_peak(path, name, kwargs):
    """The child of `peak_memory`: its last word on stdout is the peak in bytes."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("_measured", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["_measured"] = module
    spec.loader.exec_module(module)
    getattr(module, name)(**json.loads(kwargs))
    status = pathlib.Path("/proc/self/status").read_text()
    print(int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024)


class Run:
    """One run of a script: what is wanted, how often, and how rows are made.

    Args:
        wanted: Names of the cases to measure.
        quick: Whether `--quick` was given.
    """

    def __init__(self, wanted, quick):
        self.wanted = set(wanted)
        self.quick = quick
        self.runs = QUICK_RUNS if quick else RUNS
        self.device = device()
        self.commit = commit()

    def wants(self, *cases):
        """Says whether any of `cases` has to be measured."""
        return any(case in self.wanted for case in cases)

    def interleave(self, functions, **kwargs):
        """Calls `interleave` with the number of runs of this run."""
        return interleave(functions, self.runs, **kwargs)

    def memory(self, function, small, large, *, runs=3, **kwargs):
        """Measures the peak memory at `large` less that at `small`, in fresh processes.

        Args:
            function: See `peak_memory`.
            small: Dict of the arguments at a trivial size.
            large: Dict of the arguments at the size of the case.
            runs: Number of pairs of processes, 1 for `--quick`. Defaults to `3`.
            **kwargs: `python` and `env` of `peak_memory`.

        Returns:
            List of bytes, one a pair.
        """
        return [
            peak_memory(function, **kwargs, **large)
            - peak_memory(function, **kwargs, **small)
            for _ in range(1 if self.quick else runs)
        ]

    def row(
        self,
        case,
        ours,
        unit,
        peer=None,
        peers=None,
        *,
        amount=1.0,
        peer_versions=None,
        reason=None,
        **more,
    ):
        """Makes the row of a case.

        Args:
            case: Name of the case.
            ours: List of our measurements (see `summarize`); `None` if there are none.
            unit: Unit of the values.
            peer: Name of the peer or of the base. Defaults to no peer.
            peers: List of its measurements.
            amount: What one run handles, for a rate.
            peer_versions: Dict of versions that only the peer has.
            reason: Why there is no ratio. Defaults to `"no peer"` where none is named.
            **more: Further fields, such as `note`; a `ratio` replaces the computed one.

        Returns:
            Dict, ready for JSON.
        """
        row = {"case": case, "value": None, "unit": unit, "peer": peer}
        row |= {"peer_value": None, "ratio": None, "device": self.device}
        row["versions"] = versions() | (peer_versions or {})
        row |= {"runs": len(ours or peers or ()), "spread": None}
        if ours:
            row["value"], row["spread"] = summarize(ours, unit, amount)
        if peers:
            row["peer_value"], row["peer_spread"] = summarize(peers, unit, amount)
        if ours and peers:
            row["ratio"] = ratio(case, row["value"], row["peer_value"], unit)
        row |= more
        if row["ratio"] is None:
            row["reason"] = reason or ("no peer" if peer is None else "not measured")
        row["quick"] = self.quick
        row["date"] = datetime.date.today().isoformat()
        row["commit"] = self.commit
        return _rounded(row)


def _rounded(value):
    """Keeps five significant digits of every float, inside dicts and lists too."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def table(rows):
    """Writes rows as one aligned text table, values with their units."""
    head = ("case", "ours", "peer", "ratio", "10-90 % of ours", "runs", "raced against")
    lines = [head]
    for row in rows:
        unit = row["unit"]
        spread = row["spread"]
        about = [row["peer"], row.get("note"), row.get("reason")]
        lines.append(
            (
                row["case"],
                "-" if row["value"] is None else f"{row['value']:.4g} {unit}",
                "-" if row["peer_value"] is None else f"{row['peer_value']:.4g} {unit}",
                "-" if row["ratio"] is None else f"{row['ratio']:.3g}",
                "-" if spread is None else f"{spread[0]:.4g} .. {spread[1]:.4g}",
                str(row["runs"]),
                "; ".join(text for text in about if text),
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 1 <= i <= 5 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


class Suite:
    """The cases of one script and its command line.

    Args:
        name: The subject, as in `bench_<subject>.py`.
        drops: Dict from patterns of the cases that `--quick` drops to the reason why.

    Attributes:
        rows: Dict from case to row, of this run and of the file that it goes on from.
    """

    def __init__(self, name, drops=None):
        self.name = name
        self.drops = drops or {}
        self.groups = []
        self.rows = {}

    def cases(self, *names):
        """Registers a generator of rows that takes a `Run`.

        It is called where one of `names` is wanted, and yields a row as soon as it has
        one; rows of cases that are not wanted are dropped. If it raises `PeerMissing`,
        its cases without a row get one that says so.
        """
        known = {case for group, _ in self.groups for case in group}
        if known & set(names) or len(set(names)) < len(names):
            raise ValueError(f"`names` must be new. Received: names={names!r}.")

        def register(function):
            self.groups.append((names, function))
            return function

        return register

    def dropped(self, case):
        """Gives the reason why `--quick` drops `case`, or `None`."""
        for pattern, reason in self.drops.items():
            if fnmatch.fnmatchcase(case, pattern):
                return reason
        return None

    def main(self, argv=None):
        """Measures what the command line asks for, and prints the table.

        With `--json`, each row is written to the file as soon as it is there. Rows that
        the file already has stay; those of the asked cases are measured again only if
        `--fresh` is given, or if they were made on another device, with other versions,
        with `--quick` where it is not given now, or without the peer. A change of the
        code is no such reason: a row says its commit, and `--fresh` is for you to give.

        Args:
            argv: List of arguments. Defaults to those of the process.

        Returns:
            The rows of the asked cases, a list.
        """
        args = self._parse(argv)
        everything = [case for names, _ in self.groups for case in names]
        asked = [case for case in everything if re.search(args.case, case)]
        if args.quick:
            for case in asked:
                if self.dropped(case):
                    print(f"--quick drops {case}: {self.dropped(case)}")
            asked = [case for case in asked if not self.dropped(case)]

        rows = _read(args.json) if args.json else {}
        run = Run(asked, args.quick)
        if not args.fresh:
            done = [case for case in asked if _usable(rows.get(case), run)]
            run.wanted.difference_update(done)
            if done:
                print(f"Kept from {args.json} (--fresh measures again): {len(done)}")
                old = {str(rows[case].get("commit")) for case in done}
                if old != {str(run.commit)}:
                    print(
                        f"of which some were made at {sorted(old - {str(run.commit)})}"
                    )
        rows = {case: rows[case] for case in rows if case not in run.wanted}
        self.rows = rows

        def keep(row):
            rows[row["case"]] = row
            print(table([row]).split("\n")[-1], file=sys.stderr, flush=True)
            if args.json:
                _write(args.json, rows, everything)

        for names, function in self.groups:
            wanted = [case for case in names if run.wants(case)]
            if not wanted:
                continue
            try:
                for row in function(run):
                    if row["case"] in wanted:
                        keep(row)
            except PeerMissing as missing:
                for case in wanted:
                    if case not in rows:
                        keep(run.row(case, None, "", "peer", reason=str(missing)))
        result = [rows[case] for case in asked if case in rows]
        mode = "quick" if args.quick else "full"
        print(f"{self.name}, {mode}: {run.device}, {versions()}")
        print(table(result))
        return result

    def _parse(self, argv):
        parser = argparse.ArgumentParser(prog=f"bench_{self.name}.py")
        parser.add_argument("--quick", action="store_true", help="under five minutes")
        parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="file")
        parser.add_argument("--case", default="", metavar="REGEX", help="which cases")
        parser.add_argument("--fresh", action="store_true", help="keep no old row")
        return parser.parse_args(argv)


def _read(path):
    """Reads the rows of an earlier run, by case."""
    if not path.exists():
        return {}
    return {row["case"]: row for row in json.loads(path.read_text())}


def _usable(row, run):
    """Says whether a row of an earlier run can stand for one of this run."""
    if row is None or row["device"] != run.device:
        return False
    if versions().items() - row["versions"].items():
        return False
    if row["ratio"] is None and row["peer"] is not None:
        return False
    return run.quick or not row["quick"]


def _write(path, rows, order):
    """Writes the rows in the order of the script, in one step, so none is torn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = {case: i for i, case in enumerate(order)}
    listed = sorted(rows.values(), key=lambda row: place.get(row["case"], len(order)))
    lines = ",\n".join(json.dumps(row) for row in listed)
    draft = path.with_name(path.name + ".part")
    draft.write_text(f"[\n{lines}\n]\n")
    draft.replace(path)


if __name__ == "__main__" and sys.argv[1:2] == ["measure-peak"]:
    _measure_peak(*sys.argv[2:])
