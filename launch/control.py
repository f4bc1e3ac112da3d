"""What `dualtune grid` does, on Slurm and on this machine alike."""

import time
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.live import Live

from launch import slurm
from launch.cells import GridCell
from launch.choice import problems_of, resolve, settle
from launch.command import run_grid
from launch.flights import Flight
from launch.grid import load_grid
from launch.jobs import JobPlan, Task
from launch.plan import CellPlan, check, check_evaluations, summary, table
from launch.plan import plan as plan_cells
from launch.profile import load_profile
from launch.show import plan_table, plan_words, state_table, state_words
from launch.states import CellState, Look
from launch.submission import FOLDER, Submission, locked
from launch.submit import Submitter, script_of
from launch.tables import terminal
from pipeline.errors import StageError, UserError, did_you_mean
from pipeline.options import tell

AGAIN = ("failed", "cancelled", "ended", "stopped")
"""States that `retry` submits again."""


class Control:
    """One grid and the place where its jobs run."""

    def __init__(self, file: Path, overrides: Sequence[str], cluster: Path | None, executor: str) -> None:
        self.grid = load_grid(file, overrides)
        self.profile = load_profile(cluster)
        self.has_slurm = executor != "local" and slurm.is_available()
        if executor == "slurm" and not self.has_slurm:
            raise UserError("--executor slurm: no Slurm answers here (`scontrol ping`)")

    def plan(self, with_scripts: bool) -> None:
        """Print it."""
        plans = plan_cells(self.grid)
        (check_evaluations if self.has_slurm else check)(plans)
        self._show_cells(plans)
        if not self.has_slurm:
            tell("no Slurm here: `submit` runs them in processes of this machine, one after another (--jobs)")
            return
        submitter = Submitter(self.grid, self.profile, tell)
        found = submitter.plan(plans)
        self._show_jobs(found)
        if with_scripts:
            self._print_scripts(found)

    def _show_cells(self, plans: Sequence[CellPlan]) -> None:
        shown = [planned for planned in plans if not planned.complete] if len(plans) > 200 else plans
        terminal(width=1000).print(table(shown[:200], self.grid.waiting[:200]))
        if len(shown) > 200:
            tell(f"... and {len(shown) - 200} more")
        tell(summary(plans, self.grid.waiting))

    def _show_jobs(self, found: JobPlan) -> None:
        terminal(width=1000).print(plan_table(found))
        tell(plan_words(found, self.grid))
        if self.grid.waiting:
            tell(f"the aggregate job makes the choice, and submits the {len(self.grid.waiting)} runs that wait for it")

    def _print_scripts(self, found: JobPlan) -> None:
        place = Submission(self.grid.runs.absolute() / FOLDER / "NAME")
        for array in found.arrays:
            print(script_of(place.new_record(array, self.grid), array.resources, self.profile, place.path))

    def submit(self, jobs: int, processes: int, only_failed: bool = False) -> int:
        """Exit status: 0, or 1 when a run on this machine failed. On Slurm, jobs have only begun then."""
        if not self.has_slurm:
            chosen = [state.cell for state in self._failed()] if only_failed else None
            return run_grid(self.grid, jobs, dry_run=False, with_report=True, tell=tell, processes=processes,
                            chosen=chosen, apart=True)  # fmt: skip
        self._resolve()
        plans = plan_cells(self.grid)
        check_evaluations(plans)
        if only_failed:
            look = self._look()
            again = {state.cell.folder.root.name for state in look.states() if state.word in AGAIN}
            queued = {name for name, _ in look.flights}
            plans = [_again(planned, again, queued) for planned in plans]
        found = Submitter(self.grid, self.profile, tell).submit(plans)
        tell(summary(plans, self.grid.waiting))
        self._show_jobs(found)
        return 0

    def _resolve(self) -> None:
        """Make the choices whose candidates are done by now."""
        if self.grid.waiting:
            self.grid, problems = resolve(self.grid, tell)
            for problem in problems:
                tell(problem)

    def _failed(self) -> list[CellState]:
        return [state for state in self._look().states() if state.word in AGAIN]

    def _look(self) -> Look:
        return Look.now(self.grid, self.has_slurm)

    def status(self, seconds: int | None) -> int:
        """Print the states; with `seconds` again and again, until nothing runs or waits."""
        states = self._states()
        if seconds is None:
            terminal(width=1000).print(state_table(states))
        else:
            states = self._follow(seconds, states)
        tell(state_words(states))
        for problem in problems_of(self.grid) if any(_is_stuck(state) for state in states) else ():
            tell(problem)
        return int(any(state.word in AGAIN for state in states))

    def _states(self) -> list[CellState]:
        """Of what can be run, then of what waits for a choice that has not been made by now."""
        self.grid = settle(self.grid) if self.grid.waiting else self.grid
        look = self._look()
        return [*look.states(), *look.held_up()]

    def _follow(self, seconds: int, states: list[CellState]) -> list[CellState]:
        with Live(state_table(states), console=terminal(width=1000), auto_refresh=False) as live:
            while any(state.word in ("running", "waiting") for state in states):
                time.sleep(seconds)
                try:
                    states = self._states()
                except StageError as error:  # a busy controller
                    tell(f"{error}; again in {seconds} s")
                live.update(state_table(states), refresh=True)
        return states

    def cancel(self, names: Sequence[str]) -> None:
        """Cancel the jobs of some cells, or of all, and then the table too."""
        if not self.has_slurm:
            raise UserError("no Slurm answers here: stop `dualtune grid submit` on this machine with Ctrl-C")
        chosen = {self._cell(name).folder.root.name for name in names}
        with locked(self.grid.runs):  # a submission that is under way is cancelled whole
            self._cancel(chosen)

    def _cancel(self, chosen: set[str]) -> None:
        look = self._look()
        own = {cell.folder.root.name for cell in self.grid.cells}
        found = [flight for (name, _), flight in look.flights.items() if name in (chosen or own)]
        tables = [look.flights[key] for key in [(self.grid.name, "aggregate")] if key in look.flights and not chosen]  # type: ignore[index]
        try:
            _remember(found)
        except StageError as error:  # a full disk is a reason to cancel
            tell(f"{error}: `status` will call them ended")
        tasks: list[Task] = [flight.queued.task for flight in found]
        slurm.cancel(tasks, whole=[flight.queued.raw for flight in tables])
        tell(f"cancelled: {len(tasks)} tasks" + (" and the table" if tables else ""))
        if others := {
            flight.queued.task.job
            for (name, _), flight in look.flights.items()
            if name not in {*own, self.grid.name} and flight.submission.facts.get("grid") == self.grid.name
        }:
            tell(f"in the queue for cells that the grid has no more: jobs {', '.join(sorted(others))}")

    def log(self, name: str, lines: int) -> str:
        """The last lines of a cell's output."""
        state = self._look().state(self._cell(name))
        file = state.log or state.cell.folder.log
        if not file.is_file():
            raise UserError(f"{name}: has no output yet ({state.word})")
        text = file.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"{file}:", *text[-lines:]])

    def _cell(self, name: str) -> GridCell:
        names = [str(cell) for cell in self.grid.cells]
        if name not in names:
            close = did_you_mean(name, names)
            raise UserError(f"{name!r}: the grid has no such cell{close}; `dualtune grid status` names them")
        return self.grid.cells[names.index(name)]


def _is_stuck(state: CellState) -> bool:
    """Whether it waits for a choice that nobody is going to make."""
    return state.word == "not submitted" and bool(state.detail)


def _again(planned: CellPlan, failed: Collection[str], queued: Collection[str]) -> CellPlan:
    """The plan of a cell that has failed, or that is in the queue, since the new table waits for it; of others none."""
    name = planned.cell.folder.root.name
    if name in failed:
        planned.cell.folder.failure.unlink(missing_ok=True)
    return planned if name in failed or name in queued else CellPlan(planned.cell, {})


def _remember(flights: Sequence[Flight]) -> None:
    """What is cancelled is not in flight any more, though it may take its time to end."""
    by_record: dict[tuple[str, int], list[Flight]] = {}
    for flight in flights:
        by_record.setdefault((flight.submission.path.name, flight.record.number), []).append(flight)
    for group in by_record.values():
        group[0].submission.cancel(group[0].record, [flight.queued.task.slot for flight in group])
