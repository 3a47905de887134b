"""Verdicts, tables and findings on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cuda_agent.judge.verdict import Verdict
from cuda_agent.report import meaning

if TYPE_CHECKING:
    from cuda_agent.doctor import Findings


def print_verdict(console: Console, verdict: Verdict) -> None:
    """The verdict in a few lines: what, why, how fast, how sure."""
    if verdict.accepted:
        console.print(f"[bold green]accepted[/]  reward {verdict.reward}: {meaning.reward_in_words(verdict)}")
    else:
        rule = f" ({escape(verdict.rule)})" if verdict.rule else ""
        console.print(f"[bold red]rejected[/]  reward {verdict.reward}: {meaning.STATUS[verdict.status]}{rule}")
        if verdict.message:
            console.print(escape(verdict.message), soft_wrap=True)
    if verdict.log and not verdict.accepted:
        console.print(escape(verdict.log.rstrip()), style="dim", soft_wrap=True)
    rows = meaning.times_table(verdict)
    if rows:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("", "ms per call", "95 % interval", "speed-up"):
            table.add_column(name, justify="left" if not name else "right")
        for name, interval, speedup in rows:
            bounds = f"{meaning.milliseconds(interval.low)} – {meaning.milliseconds(interval.high)}"
            table.add_row(name, meaning.milliseconds(interval.ms), bounds, f"{speedup:.2f} ×" if speedup else "")
        console.print(table)
    facts = [f"{verdict.device.name} ({verdict.device.kind})"]
    if verdict.errors:
        facts.append(f"error {verdict.errors.worst:.2g} of what is allowed")
    if verdict.roofline and verdict.roofline.fraction:
        facts.append(f"{100 * verdict.roofline.fraction:.0f} % of the measured ceiling")
    if verdict.precision:
        facts.append(f"{verdict.precision} precision")
    console.print(escape("; ".join([*facts, f"isolation {verdict.isolation}"])), style="dim", soft_wrap=True)
    for flag in verdict.flags:
        console.print(f"[yellow]flag[/] {escape(flag)}", soft_wrap=True)


def print_table(console: Console, rows: list[dict[str, Any]], means: dict[str, float | None]) -> None:
    """One row a task, and the geometric mean of those that were accepted."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("task", "eager ms", "compile ms", "ours ms", "× eager", "× compile", "reward"):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    for row in rows:
        cells = [_ms(row.get(f"{name}_ms")) for name in ("eager", "compile", "candidate")]
        ratios = [_ratio(row.get(f"speedup_{name}")) for name in ("eager", "compile")]
        table.add_row(escape(row["task"]), *cells, *ratios, str(row.get("reward", row["status"])))
    table.add_section()
    table.add_row("geometric mean", "", "", "", _ratio(means["eager"]), _ratio(means["compile"]), "", style="bold")
    console.print(table)
    for row in rows:
        if row["status"] != "accepted":
            console.print(f"{escape(row['task'])}: {escape(row.get('message', row['status']))}", soft_wrap=True)


def print_findings(console: Console, findings: Findings) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    marks = {"ok": "[green]ok[/]", "missing": "[red]missing[/]", "limited": "[yellow]limited[/]", "absent": "[dim]-[/]"}
    for finding in findings.findings:
        mend = f"\n[bold]{escape(finding.mend)}[/]" if finding.mend else ""
        table.add_row(marks[finding.state], escape(finding.name), escape(finding.detail) + mend)
    console.print(table)
    console.print(escape(findings.summary), soft_wrap=True, style="bold")


def _ms(value: float | None) -> str:
    return meaning.milliseconds(value) if value is not None else "-"


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else "-"
