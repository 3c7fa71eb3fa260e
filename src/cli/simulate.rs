//! `outrigger simulate`: runs a scenario within this process, and prints its timeline and summary.

// Simulations of many seeds.
mod campaign;
// SVG chart of a run.
mod chart;
// HTML page, CSV table and terminal summary of a run.
mod report;

use std::io::{self, ErrorKind, IsTerminal, StdoutLock, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;

use self::chart::Day;
use super::args::{self, MalformedArgument};
use super::cluster_source::{choose_cluster, read_catalog};
use super::{FAILED, diagnostics, success_or};
use crate::catalog::Catalog;
use crate::config::diagnostic::Diagnostic;
use crate::config::{self, Config, Inputs, SourceFile};
use crate::host::clock::Stopwatch;
use crate::host::{files, text};
use crate::model::cluster::ManagementMode;
use crate::sim::random_scenario::sweeps::draw_scenario_with_sweeps;
use crate::sim::random_scenario::{draw_scenario, types_of};
use crate::sim::samples::{Sampler, WorldSample};
use crate::sim::scenario::{Scenario, WORKING_DAY};
use crate::sim::timeline::{TimelineEntry, TimelineFact};
use crate::sim::{Setup, World};

/// The default speed on a terminal: a day takes about a minute.
const TERMINAL_SPEED: f64 = 1200.0;
/// The shortest time between two updates of the status line.
const STATUS: Duration = Duration::from_millis(80);
/// Maximum number of violations that are printed for each seed.
const VIOLATIONS: usize = 5;
/// Clears the line the cursor is on.
const CLEAR: &str = "\r\u{1b}[2K";

#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// A scenario in HCL; default: the built-in working day
    #[arg(value_name = "SCENARIO")]
    scenario: Option<PathBuf>,
    /// Seed of all random decisions: the same seed gives the same output
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Speed as a multiple of real time, or `max` [default: 1200 on a terminal, else max]
    #[arg(long, value_name = "X", value_parser = parse_speed)]
    speed: Option<Speed>,
    /// Inject random faults: rejected launches, delays, stale listings, restarts
    #[arg(long)]
    faults: bool,
    /// Run this many seeds, starting with --seed, and print only violated invariants
    #[arg(long, value_name = "N", conflicts_with_all = ["json", "speed"])]
    seeds: Option<u64>,
    /// Generate a random scenario from each seed: two days, followed by a day without changes
    #[arg(long, conflicts_with_all = ["scenario", "config", "cluster"])]
    fleets: bool,
    /// Add scheduled sweeps to each random scenario
    #[arg(long, requires = "fleets")]
    sweeps: bool,
    /// Use this configuration instead of the scenario's; can be given several times
    #[arg(long = "config", value_name = "PATH")]
    config: Vec<PathBuf>,
    /// The cluster to use if the configuration has several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    #[command(flatten)]
    variables: args::VariableArguments,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Write a self-contained HTML page with the charts and the decisions of the run; if the name
    /// ends in .svg, write only the charts
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    report: Option<PathBuf>,
    /// Write the data of the charts, minute by minute, as comma-separated values
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    csv: Option<PathBuf>,
}

impl SimulateArgs {
    /// Returns the command that repeats one seed of this run.
    fn repeat_command(&self, seed: u64) -> String {
        let mut options: Vec<(&str, String)> = Vec::new();
        for (option, paths) in [("", self.scenario.as_slice()), ("--config ", &self.config)] {
            options.extend(paths.iter().map(|it| (option, it.display().to_string())));
        }
        options.extend(self.cluster.iter().map(|it| ("--cluster ", it.clone())));
        for (name, value) in &self.variables.set {
            options.push(("--var ", format!("{name}={value}")));
        }
        for file in &self.variables.files {
            options.push(("--var-file ", file.display().to_string()));
        }
        options.push(("--seed ", seed.to_string()));
        let mut words = vec!["outrigger simulate".to_owned()];
        for (option, value) in options {
            words.push(format!("{option}{}", text::quote_argument(&value)));
        }
        let flags =
            [("--fleets", self.fleets), ("--sweeps", self.sweeps), ("--faults", self.faults)];
        for (option, given) in flags {
            words.extend(given.then(|| option.to_owned()));
        }
        words.join(" ")
    }
}

#[derive(Clone, Copy, Debug)]
enum Speed {
    Times(f64),
    Max,
}

fn parse_speed(text: &str) -> Result<Speed, MalformedArgument> {
    if text == "max" {
        return Ok(Speed::Max);
    }
    match text.trim_end_matches('x').parse::<f64>() {
        Ok(times) if times.is_finite() && times > 0.0 => Ok(Speed::Times(times)),
        _ => Err(MalformedArgument("600, or max")),
    }
}

pub(crate) fn execute(arguments: &SimulateArgs, colour: bool) -> anyhow::Result<ExitCode> {
    if arguments.fleets {
        let types = types_of(&Catalog::shipped());
        if arguments.sweeps {
            let draw = |seed| draw_scenario_with_sweeps(seed, &types);
            return run_setup(&draw, arguments, colour);
        }
        return run_setup(&|seed| draw_scenario(seed, &types), arguments, colour);
    }
    match read_setup(arguments, colour)? {
        Some(setup) => run_setup(&|_| setup.clone(), arguments, colour),
        None => Ok(ExitCode::FAILURE),
    }
}

/// Reads the scenario and its configuration. Returns `None` after printing the problems of an
/// invalid configuration.
fn read_setup(arguments: &SimulateArgs, colour: bool) -> anyhow::Result<Option<Setup>> {
    let (name, text) = match &arguments.scenario {
        None => ("the built-in scenario".to_owned(), WORKING_DAY.to_owned()),
        Some(path) => (path.display().to_string(), files::read_limited(path)?),
    };
    let scenario = match Scenario::parse(&text) {
        Ok(scenario) => scenario,
        Err(mistakes) => {
            let lines: Vec<String> = mistakes.iter().map(|it| format!("{name}:{it}")).collect();
            bail!("the scenario is invalid\n{}", lines.join("\n"));
        }
    };
    let mut texts = vec![scenario.config.as_str()];
    if arguments.config.is_empty() {
        texts.extend(scenario.reloads.iter().map(|(_, text)| text.as_str()));
    }
    let mut clusters = Vec::new();
    for text in texts {
        match load_config(arguments, &name, text) {
            Ok(config) => {
                clusters.push(choose_cluster(config.clusters, arguments.cluster.as_deref())?)
            }
            Err(problems) => {
                diagnostics::print_problems(&problems, colour);
                return Ok(None);
            }
        }
    }
    let mut clusters = clusters.into_iter();
    let Some(mut cluster) = clusters.next() else {
        return Ok(None);
    };
    if cluster.mode == ManagementMode::Observe && !arguments.config.is_empty() {
        cluster.mode = ManagementMode::Manage;
        super::print_error_line(
            "Note: the simulation ignores mode = \"observe\" and manages the simulated cluster.",
        );
    }
    let catalog = read_catalog(&cluster, None)?;
    let times = scenario.reloads.iter().map(|(at, _)| *at);
    let reloads = times.zip(clusters.map(Arc::new)).collect();
    let setup = Setup::new(Arc::new(scenario), Arc::new(cluster), &catalog);
    Ok(Some(Setup { reloads, ..setup }))
}

/// Runs one seed and prints its timeline, or runs many seeds.
fn run_setup(
    setup_of: &(dyn Fn(u64) -> Setup + Sync),
    arguments: &SimulateArgs,
    colour: bool,
) -> anyhow::Result<ExitCode> {
    if let Some(count) = arguments.seeds {
        return Ok(campaign::run(setup_of, count, arguments)?);
    }
    let setup = setup_of(arguments.seed);
    let (start, end) = (setup.scenario.start, setup.scenario.end);
    let files: Vec<&PathBuf> = [&arguments.report, &arguments.csv].into_iter().flatten().collect();
    if let [report, table] = files.as_slice()
        && report == table
    {
        bail!("cannot write {}: --report and --csv name the same file", report.display());
    }
    // Fails before a long run, not after it, if a file cannot be written.
    for path in &files {
        let opened = fs::OpenOptions::new().append(true).create(true).open(path);
        opened.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut world = World::new(setup, arguments.seed, arguments.faults);
    let mut stage = Stage::new(arguments, start, colour);
    let mut sampler = Sampler::new(start, end);
    let mut lines = Vec::new();
    loop {
        sampler.take_due(&world);
        let Some(now) = world.step() else { break };
        stage.wait_until_due(now);
        let facts = world.take_lines();
        let has_news = !facts.is_empty();
        for line in &facts {
            stage.print_line(line)?;
        }
        if arguments.report.is_some() {
            lines.extend(facts);
        }
        stage.update_status(&world, has_news)?;
    }
    stage.print_summary(&world, sampler.samples())?;
    let day = Day { start, samples: sampler.samples(), lines: &lines };
    write_outputs(&day, &world, arguments)?;
    // After the printed part, the simulation runs on to its end state and checks the invariants
    // there.
    let violations = world.run_and_check();
    for violation in violations.iter().take(VIOLATIONS) {
        super::print_error_line(&format!("Error: {violation}"));
    }
    if violations.len() > VIOLATIONS {
        super::print_error_line(&format!("and {} more errors", violations.len() - VIOLATIONS));
    }
    Ok(success_or(FAILED, violations.is_empty()))
}

/// Writes the files of `--report` and `--csv`.
fn write_outputs(day: &Day<'_>, world: &World, arguments: &SimulateArgs) -> anyhow::Result<()> {
    let mut named = None;
    if let Some(path) = &arguments.report {
        let text = match path.extension().is_some_and(|end| end == "svg") {
            true => day.render_svg()?,
            false => report::render_page(day, &world.summary())?,
        };
        replace_file(path, &text)?;
        named = Some(path);
    }
    if let Some(path) = &arguments.csv {
        replace_file(path, &report::render_csv(day.samples))?;
    }
    if let Some(path) = named.filter(|_| !arguments.json) {
        writeln!(io::stdout().lock(), "  report  {}", path.display())?;
    }
    Ok(())
}

/// Replaces a file. If that fails, the file of an earlier run is unchanged.
fn replace_file(path: &Path, text: &str) -> anyhow::Result<()> {
    files::replace_file(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Loads a configuration of the scenario, or the configuration of `--config`.
fn load_config(
    arguments: &SimulateArgs,
    name: &str,
    text: &str,
) -> Result<Config, Vec<Diagnostic>> {
    if !arguments.config.is_empty() {
        return files::load_config(&arguments.variables.config_sources(arguments.config.clone()));
    }
    let inside = SourceFile::new(name, text);
    let dir = arguments.scenario.as_ref().and_then(|path| path.parent()).map(PathBuf::from);
    let inputs =
        Inputs { dir: dir.unwrap_or_default(), read: &files::read_referenced, ..Inputs::default() };
    config::load(&[inside], &inputs)
}

/// Prints the timeline at the chosen speed.
struct Stage {
    out: StdoutLock<'static>,
    json: bool,
    /// Whether a status line is shown below the timeline.
    live: bool,
    colour: bool,
    start: Timestamp,
    speed: Speed,
    watch: Stopwatch,
    status_at: Duration,
    /// Whether the run writes a report or a table when it ends.
    is_for_files: bool,
}

impl Stage {
    fn new(arguments: &SimulateArgs, start: Timestamp, colour: bool) -> Self {
        let live = io::stdout().is_terminal() && !arguments.json;
        let usual = if live { Speed::Times(TERMINAL_SPEED) } else { Speed::Max };
        Self {
            out: io::stdout().lock(),
            json: arguments.json,
            live,
            colour: colour && live,
            start,
            speed: arguments.speed.unwrap_or(usual),
            watch: Stopwatch::start(),
            status_at: Duration::ZERO,
            is_for_files: arguments.report.is_some() || arguments.csv.is_some(),
        }
    }

    /// Sleeps until the simulated time `now` is due at the chosen speed.
    fn wait_until_due(&self, now: Timestamp) {
        let Speed::Times(times) = self.speed else {
            return;
        };
        let passed = now.duration_since(self.start).as_secs_f64() / times;
        let due = Duration::try_from_secs_f64(passed).unwrap_or_default();
        thread::sleep(due.saturating_sub(self.watch.elapsed()));
    }

    fn print_line(&mut self, line: &TimelineEntry) -> io::Result<()> {
        let written = self.write_line(line);
        self.unless_closed(written)
    }

    /// Ignores a closed pipe if the run still has a report or a table to write.
    fn unless_closed(&mut self, written: io::Result<()>) -> io::Result<()> {
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe && self.is_for_files => Ok(()),
            written => written,
        }
    }

    fn write_line(&mut self, line: &TimelineEntry) -> io::Result<()> {
        if self.json {
            return writeln!(self.out, "{}", line.to_json());
        }
        let clear = if self.live { CLEAR } else { "" };
        match colour_of(&line.fact).filter(|_| self.colour) {
            Some(colour) => writeln!(self.out, "{clear}\u{1b}[{colour}m{line}\u{1b}[0m"),
            None => writeln!(self.out, "{clear}{line}"),
        }
    }

    /// Updates the status line below the timeline.
    fn update_status(&mut self, world: &World, has_news: bool) -> io::Result<()> {
        let elapsed = self.watch.elapsed();
        if !self.live || (!has_news && elapsed.saturating_sub(self.status_at) < STATUS) {
            return Ok(());
        }
        self.status_at = elapsed;
        let sample = WorldSample::from_world(world, world.now());
        let time = sample.at.strftime("%a %H:%M");
        write!(
            self.out,
            "{CLEAR}{time}  {} pods pending  {} instances  {} nodes  ${:.2}/h",
            sample.pending,
            sample.live_instances(),
            sample.nodes,
            sample.usd_per_h,
        )?;
        self.out.flush()
    }

    /// Prints the summary with sparklines.
    fn print_summary(&mut self, world: &World, samples: &[WorldSample]) -> io::Result<()> {
        let summary = world.summary();
        let written = if self.json {
            writeln!(self.out, "{}", summary.to_json())
        } else {
            let clear = if self.live { CLEAR } else { "" };
            let glance = report::render_sparklines(samples);
            write!(self.out, "{clear}\n{summary}\n{glance}")
        };
        self.unless_closed(written)
    }
}

/// Returns the terminal colour: green for new nodes, yellow for disrupted nodes and red for
/// failures, as in Terraform plans.
fn colour_of(fact: &TimelineFact) -> Option<u8> {
    match fact {
        TimelineFact::Launched { .. } | TimelineFact::Ready { .. } => Some(32),
        TimelineFact::Leaving { .. } | TimelineFact::Retired { .. } => Some(33),
        TimelineFact::Refused { .. }
        | TimelineFact::Interrupted { .. }
        | TimelineFact::Lost { .. }
        | TimelineFact::Stock { left: Some(_), .. }
        | TimelineFact::Fault(_)
        | TimelineFact::Unplaced { .. }
        | TimelineFact::Held { .. }
        | TimelineFact::Frozen(_)
        | TimelineFact::Stopped => Some(31),
        TimelineFact::Scaled { .. } => Some(36),
        TimelineFact::Waiting { .. }
        | TimelineFact::Planned { .. }
        | TimelineFact::Registered { .. }
        | TimelineFact::Bound { .. }
        | TimelineFact::Stock { .. }
        | TimelineFact::Accepted(_)
        | TimelineFact::Reloaded
        | TimelineFact::Started
        | TimelineFact::Thawed => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::SimulateArgs;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: SimulateArgs,
    }

    #[test]
    fn repeat_command_keeps_all_arguments_of_the_run() {
        let given = "x s.hcl --config a --cluster c --var k=v --var-file f --faults --seeds 9";
        let line = Line::parse_from(given.split(' '));
        assert_eq!(
            line.arguments.repeat_command(7),
            "outrigger simulate s.hcl --config a --cluster c --var k=v --var-file f --seed 7 \
             --faults"
        );
    }
}
