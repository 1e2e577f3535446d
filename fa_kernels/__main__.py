"""`python -m fa_kernels doctor | verify | measure | figures | slides ...`: `--help` lists all."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fa_kernels.present.options import PAGES, add_pages, run_pages

#: Options of `measure` that choose a grid, as `sweep.Grid` calls them.
GRID_OPTIONS = ("seqlens", "head_dims", "dtypes", "sram_kib", "control_sram_kib", "peers")
#: Kinds of runs with shapes of their own, each an option of `measure`; counters are another.
SPECIAL_KINDS = (
    "backward", "speed", "training", "ceilings", "numerics", "paper", "decode", "generation",
    "sparse", "maps",
)  # fmt: skip

#: Those of them that `measure --speed` takes, too.
SPEED_OPTIONS = ("seqlens", "head_dims", "dtypes", "peers")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fa_kernels", description="FlashAttention Lab from the command line."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what is here, what each absence costs, and the remedy")

    verify = commands.add_parser("verify", help="check every kernel on this GPU and record it")
    verify.add_argument("variants", nargs="*", help="names of fa.VARIANTS; default: all")
    verify.add_argument("--out", type=Path, help="folder for the record; default: data/verified")
    verify.add_argument(
        "--unverified",
        action="store_true",
        help="only kernels not verified with today's sources; goes on after --minutes",
    )
    verify.add_argument("--minutes", type=float, help="begin no case after this many minutes")
    verify.add_argument(
        "--jobs", type=int, help="processes that share the GPU; default: by its size"
    )
    verify.add_argument(
        "--verbose", action="store_true", help="one line per case, with its seconds"
    )

    sanitize = commands.add_parser("sanitize", help="compute-sanitizer over a few small launches")
    sanitize.add_argument(
        "tools", nargs="*", help="default: memcheck racecheck initcheck synccheck"
    )

    measure = commands.add_parser("measure", help="measure the recorded grid on this GPU")
    measure.add_argument("--label", help="last part of the run id; default: the kind of run")
    measure.add_argument("--out", type=Path, help="folder of runs; default: data/measured")
    measure.add_argument("--resume", metavar="RUN_ID", help="continue an interrupted run")
    measure.add_argument("--minutes", type=float, help="stop before this many minutes are over")
    measure.add_argument("--ui", action="store_true", help="time what a page makes wait for")
    measure.add_argument(
        "--counters", action="store_true", help="DRAM and L2 bytes by Nsight Compute instead"
    )
    measure.add_argument("--shapes", choices=("figure2",), help="with --counters: its backwards")
    measure.add_argument(
        "--backward", action="store_true", help="backward passes: time, bytes and memory instead"
    )
    measure.add_argument(
        "--speed", action="store_true", help="the fast kernels beside their peers instead"
    )
    measure.add_argument(
        "--pass", dest="passes", nargs="+", choices=("fwd", "bwd"), help="with --speed: of these"
    )
    measure.add_argument("--training", action="store_true", help="steps of GPT-2 small instead")
    measure.add_argument("--decode", action="store_true", help="steps over a KV cache instead")
    measure.add_argument("--ceilings", action="store_true", help="what each unit reaches instead")
    measure.add_argument(
        "--numerics", action="store_true", help="errors against float64 instead; also without a GPU"
    )
    measure.add_argument(
        "--backend", choices=("cuda", "numpy"), help="with --numerics; default: the GPU, if any"
    )
    measure.add_argument("--paper", action="store_true", help="published tables' calls instead")
    measure.add_argument("--generation", action="store_true", help="GPT-2 writing text instead")
    measure.add_argument(
        "--sparse", action="store_true", help="block masks of falling density instead"
    )
    measure.add_argument(
        "--maps", action="store_true", help="attention of a small model trained for it instead"
    )
    measure.add_argument("--commit", help="commit to record where the checkout has no .git")
    measure.add_argument("--dtypes", nargs="+", help="default: the explorer's grid")
    for name in ("seqlens", "head-dims", "sram-kib"):
        measure.add_argument(f"--{name}", type=int, nargs="+", help="default: the explorer's grid")
    measure.add_argument(
        "--control-sram-kib", type=int, nargs="+", help="M for variants that isolate one difference"
    )
    measure.add_argument(
        "--max-latency-ms", type=float, help="skip calls estimated to take longer; default: 3000"
    )
    measure.add_argument("--peers", nargs="*", help="default: torch's, if it is installed")
    measure.add_argument(
        "--l2", choices=("cold", "warm"), help="as a timed call finds it; default: cold"
    )

    trace = commands.add_parser("trace", help="record the row traces of notebook 02 on this GPU")
    trace.add_argument("--out", type=Path, help="folder of traces; default: data/traces")
    trace.add_argument("--commit", help="commit to record where the checkout has no .git")

    figures = commands.add_parser(
        "figures", help="redraw the README's picture and table, or every figure of the suite"
    )
    figures.add_argument(
        "--run", metavar="RUN_ID", help="default: the newest of the GPU shown there"
    )
    figures.add_argument("--all", action="store_true", help="write every figure of the suite")
    figures.add_argument("--venue", help="with --all: whose column width; default: neurips")
    figures.add_argument("--formats", nargs="+", help="with --all: of pdf svg png html")
    figures.add_argument("--out", type=Path, help="with --all: a folder; default: figures")

    add_pages(commands)

    compile_all = commands.add_parser("compile-all", help="compile every kernel, no GPU needed")
    compile_all.add_argument("--verbose", action="store_true", help="one line per compilation")
    compile_all.add_argument(
        "--record",
        action="store_true",
        help="instead write registers, occupancy and instructions to data/compiled",
    )
    return parser


def _doctor(args: argparse.Namespace) -> int:
    from fa_kernels.measure.doctor import report

    print(report())
    return 0


def _refuse_without_gpu(command: str) -> None:
    from fa_kernels.cuda.launch import available, what_is_missing

    if not available():
        sys.exit(
            f"{command} needs CuPy and a CUDA GPU, and {what_is_missing()}. "
            "Run `python -m fa_kernels doctor` for what is missing and how to get it."
        )


def _verify(args: argparse.Namespace) -> int:
    _refuse_without_gpu("verify")
    from fa_kernels.cuda.verified import VERIFIED_DIR
    from fa_kernels.measure import verified_run

    if args.jobs is not None and args.jobs < 1:
        sys.exit(f"--jobs must be at least 1, got {args.jobs}: leave it out for the default.")
    try:
        asked = verified_run.kernels_of(args.variants, args.unverified)
    except ValueError as error:
        sys.exit(str(error))
    kernels = [kernel for kernel in asked if verified_run.is_for_this_gpu(kernel)]
    root, done, failed = args.out or VERIFIED_DIR, 0, False
    for kernel, tally in verified_run.verify(
        kernels,
        jobs=args.jobs or verified_run.default_jobs(),
        seconds=args.minutes and args.minutes * 60,
        verbose=args.verbose,
    ):
        path = verified_run.write_verified({kernel: tally}, _command_line(), root)
        print(
            f"{kernel}: {tally.cases} cases, {tally.failures} failures, {tally.skipped} refused; "
            f"worst error {tally.worst_ratio:.2f} of its limit; wrote {path}",
            flush=True,
        )
        done, failed = done + 1, failed or tally.failures > 0
    if done < len(kernels):
        print(f"{len(kernels) - done} kernels are left: go on with `verify --unverified`.")
    return int(failed or done < len(kernels))


def _sanitize(args: argparse.Namespace) -> int:
    _refuse_without_gpu("sanitize")
    from fa_kernels.measure.sanitize import TOOLS, sanitize

    unknown = [tool for tool in args.tools if tool not in TOOLS]
    if unknown:
        sys.exit(f"tools {unknown} are not known: name any of {', '.join(TOOLS)}.")
    return int(sanitize(tuple(args.tools) or TOOLS) > 0)


def _measure_ui() -> int:
    from fa_kernels.measure.ui import measure_ui

    try:
        path = measure_ui()
    except RuntimeError as error:
        sys.exit(str(error))
    print(f"wrote {path}")
    return 0


def _measure(args: argparse.Namespace) -> int:
    if args.ui:
        given = {name for name, value in vars(args).items() if value not in (None, False)}
        other = given - {"command", "ui"}
        if other:
            sys.exit(f"--ui takes no other option, got {', '.join(sorted(other))}: leave them out.")
        return _measure_ui()
    kinds = [name for name in ("counters", *SPECIAL_KINDS) if getattr(args, name)]
    if len(kinds) > 1:
        named = " and ".join(f"--{name}" for name in kinds)
        sys.exit(f"{named} are runs of different kinds: give one of them.")
    if args.passes and not args.speed:
        sys.exit("--pass says which passes --speed times: give both, or leave it out.")
    if args.counters:
        return _measure_counters(args)
    if args.shapes:
        sys.exit("--shapes says what --counters reads: give both, or neither.")
    if args.backend and not args.numerics:
        sys.exit("--backend says where --numerics computes: give both, or leave it out.")
    for kind in SPECIAL_KINDS:
        if getattr(args, kind):
            return _measure_special(args, kind)
    from fa_kernels.measure import records
    from fa_kernels.measure.special_run import kind_with, refuse_other_kind
    from fa_kernels.measure.sweep import Grid, run_sweep, start_run
    from fa_kernels.measure.timing import METHODS

    chosen: dict[str, Any] = {
        name: tuple(value) for name in GRID_OPTIONS if (value := getattr(args, name)) is not None
    }
    if args.max_latency_ms is not None:
        chosen["max_latency_ms"] = args.max_latency_ms
    try:
        grid = Grid(**chosen)
        _refuse_without_gpu("measure")
        root = args.out or records.MEASURED_DIR
        kind = kind_with("grid", args.l2 or "cold")
        warm: dict[str, Any] = {"kind": kind, "method": METHODS["warm"]} if kind != "grid" else {}
        refuse_other_kind(args.resume, root, kind)
        label = args.label or kind
        folder = start_run(label, _command_line(), root, args.resume, args.commit, **warm)
    except (ValueError, FileExistsError) as error:
        sys.exit(str(error))
    finished = run_sweep(folder, grid, args.minutes and args.minutes * 60, l2=args.l2 or "cold")
    print(f"{'finished' if finished else 'stopped'}: {folder}")
    return 0


def _measure_counters(args: argparse.Namespace) -> int:
    from fa_kernels.measure import records

    limits = ("seqlens", "head_dims", "dtypes", "sram_kib")
    options = (*GRID_OPTIONS, "l2")
    given = [n for n in options if getattr(args, n) is not None and n not in limits]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        sys.exit(f"--counters has shapes of its own and takes no {flags}: leave it out.")
    _refuse_without_gpu("measure")
    from fa_kernels.measure.counter_shapes import chosen
    from fa_kernels.measure.counters import measure_counters
    from fa_kernels.measure.ncu import NcuRefused
    from fa_kernels.measure.special_run import refuse_other_kind

    root = args.out or records.MEASURED_DIR
    try:
        refuse_other_kind(args.resume, root, "counters")
        choice = chosen(args.shapes, *(getattr(args, name) for name in limits))
        seconds = args.minutes and args.minutes * 60
        folder, finished = measure_counters(
            root, args.label, _command_line(), args.resume, args.commit, seconds, choice=choice
        )
    except NcuRefused as refusal:
        # No failure: counters are refused on many machines, and everything else works there.
        print(refusal)
        return 0
    except (ValueError, FileExistsError) as error:
        sys.exit(str(error))
    print(f"{'finished' if finished else 'stopped'}: {folder}")
    return 0


def _measure_special(args: argparse.Namespace, kind: str) -> int:
    """A run of one of `SPECIAL_KINDS`."""
    from fa_kernels.measure import records

    taken = {"command", kind, "label", "out", "commit", "resume", "minutes"}
    own = {"speed": {"passes", "l2", *SPEED_OPTIONS}, "numerics": {"backend"}}
    taken |= own.get(kind, set())
    taken -= {"resume"} if kind == "maps" else set()
    other = {name for name, value in vars(args).items() if value not in (None, False)} - taken
    if other:
        sys.exit(f"--{kind} takes no {', '.join(sorted(other))}: leave them out.")
    more: dict[str, Any] = {}
    if kind == "numerics":
        from fa_kernels.cuda.launch import available

        more = {"backend": args.backend or ("cuda" if available() else "numpy")}
    if more.get("backend") != "numpy":
        _refuse_without_gpu("measure")
    from fa_kernels.measure.maps import MAPS_DIR
    from fa_kernels.measure.special_run import recorder, refuse_other_kind

    record = recorder(kind)
    root = args.out or (MAPS_DIR if kind == "maps" else records.MEASURED_DIR)
    seconds = args.minutes and args.minutes * 60
    try:
        if kind == "speed":
            more = _speed_options(args)
            kind = more.pop("kind", kind)
        label = args.label or kind
        refuse_other_kind(args.resume, root, kind)
        folder, finished = record(
            root, label, _command_line(), args.resume, args.commit, seconds, **more
        )
    except (ValueError, FileExistsError, ModuleNotFoundError) as error:
        sys.exit(str(error))
    print(f"{'finished' if finished else 'stopped'}: {folder}")
    return 0


def _speed_options(args: argparse.Namespace) -> dict[str, Any]:
    """What `record_speed` takes of the command line, and the kind of such a run."""
    from fa_kernels.measure.special_run import kind_with
    from fa_kernels.measure.speed_run import SpeedGrid

    names = ("passes", *SPEED_OPTIONS)
    grid = SpeedGrid(**{n: tuple(v) for n in names if (v := getattr(args, n)) is not None})
    l2 = args.l2 or "cold"
    return {"grid": grid, "l2": l2, "kind": kind_with(grid.kind, l2)}


def _trace(args: argparse.Namespace) -> int:
    _refuse_without_gpu("trace")
    from fa_kernels.measure.traces import record_all

    try:
        written = record_all(_command_line(), args.commit, args.out)
    except (FileExistsError, RuntimeError) as error:
        sys.exit(str(error))
    for path in written:
        print(f"wrote {path}")
    return 0


def _figures(args: argparse.Namespace) -> int:
    from fa_kernels.widgets.figures_command import rebuild_all, redraw_readme

    if not args.all:
        if args.venue or args.formats or args.out:
            sys.exit("--venue, --formats and --out are for every figure: give --all, too.")
        return redraw_readme(args.run)
    folder = args.out or Path("figures")
    return rebuild_all(args.run, args.venue, args.formats, folder, _command_line())


def _compile_all(args: argparse.Namespace) -> int:
    from fa_kernels.measure.compile_all import compile_all

    if args.record:
        return _record_compiled()
    return int(compile_all(verbose=args.verbose) > 0)


def _record_compiled() -> int:
    from fa_kernels.measure.compiled_run import record_compiled

    try:
        written = record_compiled(_command_line())
    except ModuleNotFoundError as error:
        sys.exit(f"{error}: CuPy carries NVRTC, `pip install cupy-cuda13x`; no GPU is needed.")
    except (FileNotFoundError, RuntimeError) as error:
        sys.exit(str(error))
    for path in written:
        print(f"wrote {path}")
    return 0


def _command_line() -> str:
    no_folders = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "fa_kernels", *no_folders])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    args = _parser().parse_args(argv)
    handlers = {
        "doctor": _doctor,
        "verify": _verify,
        "sanitize": _sanitize,
        "measure": _measure,
        "trace": _trace,
        "figures": _figures,
        "compile-all": _compile_all,
        **dict.fromkeys(PAGES, run_pages),
    }
    return handlers[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
